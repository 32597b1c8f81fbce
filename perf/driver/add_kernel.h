// The add kernel of a plain host loop, as PTX: the driver compiles it where it runs. Made by nvcc -ptx from
//
//   extern "C" __global__ void tutti_add(float4* to, const float4* from, unsigned long long count) {
//     const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
//     for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
//       float4 a = to[i];
//       const float4 b = from[i];
//       a.x += b.x; a.y += b.y; a.z += b.z; a.w += b.w;
//       to[i] = a;
//     }
//   }
#pragma once

namespace tutti::perf {

inline constexpr const char* kAddKernelName = "tutti_add";
inline constexpr const char* kAddKernel = R"(.version 7.0
.target sm_80
.address_size 64
.visible .entry tutti_add(
	.param .u64 tutti_add_param_0,
	.param .u64 tutti_add_param_1,
	.param .u64 tutti_add_param_2
)
{
	.reg .pred 	%p<3>;
	.reg .f32 	%f<21>;
	.reg .b32 	%r<5>;
	.reg .b64 	%rd<18>;
	ld.param.u64 	%rd8, [tutti_add_param_0];
	ld.param.u64 	%rd9, [tutti_add_param_1];
	ld.param.u64 	%rd10, [tutti_add_param_2];
	mov.u32 	%r1, %ntid.x;
	cvt.u64.u32 	%rd1, %r1;
	mov.u32 	%r2, %ctaid.x;
	mul.wide.u32 	%rd11, %r2, %r1;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd12, %r3;
	add.s64 	%rd17, %rd11, %rd12;
	setp.ge.u64 	%p1, %rd17, %rd10;
	@%p1 bra 	$L__BB0_3;
	mov.u32 	%r4, %nctaid.x;
	cvt.u64.u32 	%rd13, %r4;
	mul.lo.s64 	%rd3, %rd13, %rd1;
	cvta.to.global.u64 	%rd4, %rd8;
	cvta.to.global.u64 	%rd5, %rd9;
$L__BB0_2:
	shl.b64 	%rd14, %rd17, 4;
	add.s64 	%rd15, %rd4, %rd14;
	ld.global.v4.f32 	{%f1, %f2, %f3, %f4}, [%rd15];
	add.s64 	%rd16, %rd5, %rd14;
	ld.global.v4.f32 	{%f9, %f10, %f11, %f12}, [%rd16];
	add.f32 	%f17, %f4, %f12;
	add.f32 	%f18, %f3, %f11;
	add.f32 	%f19, %f2, %f10;
	add.f32 	%f20, %f1, %f9;
	st.global.v4.f32 	[%rd15], {%f20, %f19, %f18, %f17};
	add.s64 	%rd17, %rd17, %rd3;
	setp.lt.u64 	%p2, %rd17, %rd10;
	@%p2 bra 	$L__BB0_2;
$L__BB0_3:
	ret;
}
)";

}  // namespace tutti::perf

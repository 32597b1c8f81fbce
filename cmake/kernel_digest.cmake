# cmake -D IMAGE=file -D DIGEST=header -P kernel_digest.cmake: a header that differs where the image does.
file(SHA256 ${IMAGE} digest)
file(WRITE ${DIGEST} "// The kernels: ${digest}\n")

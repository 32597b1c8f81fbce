# device.kernel_image: what nvcc has made of the kernels. Kernels of another build may be for other GPUs than this one asks for.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(TUTTI_KERNEL_IMAGE AND Python3_FOUND)
  set(expected --kernels ${CMAKE_SOURCE_DIR}/collectives/executor/cuda/kernels.h --library $<TARGET_FILE:tutti_shared>)
  if(NOT TUTTI_KERNELS)
    list(APPEND expected --architectures ${TUTTI_CUDA_ARCHITECTURES})
  endif()
  add_test(NAME device.kernel_image COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_LIST_DIR}/kernel_image.py
    ${TUTTI_KERNEL_IMAGE} ${expected})
  set_tests_properties(device.kernel_image PROPERTIES LABELS fast TIMEOUT 60)
endif()

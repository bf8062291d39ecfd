# libexpertd_cuda.so: every .cu file compiled by nvcc. Code for sm_80 and sm_90a; for later GPUs (10.0 and more) PTX of compute_100, which
# the driver translates. No implicit fused multiply-add. Register spills, serialised wgmma and an ignored setmaxnreg fail the build
# (nvcc_strict). -no-compress: tests/gpu/check_cubins reads the device code in the objects.
set(strict ${CMAKE_CURRENT_SOURCE_DIR}/nvcc_strict)
set(flags -std=c++17 -O3 -I${CMAKE_SOURCE_DIR} -I${CMAKE_SOURCE_DIR}/base/include -I${CMAKE_SOURCE_DIR}/kernels/include
          -I${CMAKE_CURRENT_SOURCE_DIR}/ptx # for <ptx.cuh>
          --fmad=false --ftz=false -Xcompiler=-fPIC,-fvisibility=hidden
          -no-compress -Xptxas=-warn-spills,-warn-lmem-usage -Werror all-warnings)
set(every_target -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_100,code=compute_100)
find_program(EXPERTD_CCACHE ccache)
set(launcher "")
if(EXPERTD_CCACHE)
  set(launcher ${EXPERTD_CCACHE})
endif()
file(GLOB device_sources CONFIGURE_DEPENDS */*.cu)
set(device_objects "")
foreach(source ${device_sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.cuda.o)
  set(targets ${every_target})
  if(name MATCHES "_sm90$")
    set(targets -gencode arch=compute_90a,code=[sm_90a,compute_90a]) # PTX for check_cubins
  endif()
  add_custom_command(OUTPUT ${object} DEPENDS ${source} ${strict} DEPFILE ${object}.d VERBATIM COMMENT "Building CUDA object ${name}"
                     COMMAND ${strict} ${launcher} ${EXPERTD_NVCC} ${flags} ${targets} -MD -MF ${object}.d -c ${source} -o ${object})
  list(APPEND device_objects ${object})
endforeach()
# Only NCCL's header is needed: the module loads libnccl.so.2 only if more than one GPU is requested.
get_filename_component(nvcc_folder ${EXPERTD_NVCC} DIRECTORY)
find_path(EXPERTD_NCCL_INCLUDE nccl.h HINTS "${nvcc_folder}/../include")
set(object ${CMAKE_CURRENT_BINARY_DIR}/nccl.cuda.o)
set(source ${CMAKE_SOURCE_DIR}/shard/nccl.cc)
set(nccl_include -I${EXPERTD_NCCL_INCLUDE})
if(NOT EXPERTD_NCCL_INCLUDE)
  message(STATUS "No nccl.h beside ${EXPERTD_NVCC}: the CUDA module is built without NCCL and refuses to use several GPUs; install "
                 "libnccl-dev or run deploy/install-deps --cuda, or name its folder with -DEXPERTD_NCCL_INCLUDE")
  set(source ${CMAKE_SOURCE_DIR}/shard/no_nccl.cc)
  set(nccl_include "")
endif()
add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM COMMENT "Building CUDA object nccl"
                   COMMAND ${launcher} ${EXPERTD_NVCC} ${flags} ${nccl_include} -MD -MF ${object}.d -c ${source} -o ${object})
list(APPEND device_objects ${object})
set(module ${CMAKE_BINARY_DIR}/lib/expertd/libexpertd_cuda.so)
add_custom_command(OUTPUT ${module} DEPENDS ${device_objects} VERBATIM COMMENT "Linking libexpertd_cuda.so"
                   COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/lib/expertd
                   COMMAND ${EXPERTD_NVCC} -shared -cudart static -o ${module} ${device_objects})
add_custom_target(expertd_cuda ALL DEPENDS ${module})

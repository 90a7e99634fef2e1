# libtorch as the torch wheel ships it. Torch's own CMake package demands a CUDA toolkit wherever the
# wheel was built with CUDA; a CPU build of automoe needs only headers and three libraries.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import os, importlib.util as u; print(os.path.dirname(u.find_spec('torch').origin))"
  OUTPUT_VARIABLE AUTOMOE_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
if(failed)
  message(FATAL_ERROR "torch was not found by ${Python3_EXECUTABLE}; run `pip install torch==2.11.0` there, "
                      "or name another interpreter with -DPython3_EXECUTABLE=...")
endif()
set(AUTOMOE_TORCH_LIB_DIR ${AUTOMOE_TORCH_DIR}/lib)
find_package(Threads REQUIRED)

add_library(automoe_torch INTERFACE)
target_include_directories(automoe_torch SYSTEM INTERFACE
  $<BUILD_INTERFACE:${AUTOMOE_TORCH_DIR}/include>
  $<BUILD_INTERFACE:${AUTOMOE_TORCH_DIR}/include/torch/csrc/api/include>)
target_link_libraries(automoe_torch INTERFACE Threads::Threads
  ${AUTOMOE_TORCH_LIB_DIR}/libtorch_cpu.so ${AUTOMOE_TORCH_LIB_DIR}/libc10.so)
target_link_options(automoe_torch INTERFACE -Wl,--allow-shlib-undefined)
if(AUTOMOE_WITH_CUDA)
  target_compile_definitions(automoe_torch INTERFACE AUTOMOE_WITH_CUDA)
  target_include_directories(automoe_torch SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  # No symbol of libtorch_cuda is used by name: it registers the CUDA backend when it is loaded.
  target_link_libraries(automoe_torch INTERFACE
    "-Wl,--no-as-needed" ${AUTOMOE_TORCH_LIB_DIR}/libtorch_cuda.so "-Wl,--as-needed"
    ${AUTOMOE_TORCH_LIB_DIR}/libc10_cuda.so CUDA::cudart)
endif()

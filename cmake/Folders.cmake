# Every folder of src/ is one object library, automoe_<folder>; libautomoe.so and the unit tests are
# linked from them. A test sits beside its source: src/<folder>/<stem>_test.cpp.
option(AUTOMOE_CCACHE "Compile through ccache where it is installed" ON)
find_program(AUTOMOE_CCACHE_PROGRAM ccache)
if(AUTOMOE_CCACHE AND AUTOMOE_CCACHE_PROGRAM)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${AUTOMOE_CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

add_library(automoe_flags INTERFACE)
target_include_directories(automoe_flags INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_options(automoe_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter -fPIC -fpch-preprocess>
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --extended-lambda -Xcompiler=-fPIC>)
target_link_libraries(automoe_flags INTERFACE automoe_torch automoe_json)
if(AUTOMOE_SANITIZE)
  target_compile_options(automoe_flags INTERFACE -fsanitize=${AUTOMOE_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(automoe_flags INTERFACE -fsanitize=${AUTOMOE_SANITIZE})
endif()

add_library(automoe_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
target_link_libraries(automoe_pch PRIVATE automoe_flags)
target_precompile_headers(automoe_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch.h)

# automoe_folder(NAME DEPENDS folder...): src/NAME, every source in it. DEPENDS names the folders it may
# include; its tests link them too.
function(automoe_folder name)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  if(AUTOMOE_WITH_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cu)
    list(FILTER sources EXCLUDE REGEX "cuda/stubs\\.cpp$")
  endif()
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cpp$")
  if(NOT sources)
    set(sources ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
  endif()
  add_library(automoe_${name} OBJECT ${sources} ${cuda_sources})
  target_link_libraries(automoe_${name} PRIVATE automoe_flags)
  target_precompile_headers(automoe_${name} REUSE_FROM automoe_pch)
  if(tests AND AUTOMOE_TESTS)
    automoe_tests(${name} FOLDERS ${name} ${arg_DEPENDS} SOURCES ${tests})
  endif()
endfunction()

# automoe_link_folders(TARGET folder...): links the folders' objects into TARGET.
function(automoe_link_folders target)
  foreach(folder ${ARGN})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:automoe_${folder}>)
  endforeach()
  target_link_libraries(${target} PRIVATE automoe_flags)
endfunction()

# automoe_tests(NAME FOLDERS folder... SOURCES x_test.cpp...): one GoogleTest program, <NAME>_test.
function(automoe_tests name)
  cmake_parse_arguments(arg "" "" "FOLDERS;SOURCES" ${ARGN})
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "GoogleTest was not found; install libgtest-dev or configure with -DAUTOMOE_TESTS=OFF")
  endif()
  add_executable(${name}_test ${arg_SOURCES})
  automoe_link_folders(${name}_test ${arg_FOLDERS})
  target_precompile_headers(${name}_test REUSE_FROM automoe_pch)
  target_link_libraries(${name}_test PRIVATE GTest::gtest_main)
  set_target_properties(${name}_test PROPERTIES BUILD_RPATH "${AUTOMOE_TORCH_LIB_DIR}"
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  add_test(NAME ${name} COMMAND ${name}_test)
endfunction()
enable_testing()

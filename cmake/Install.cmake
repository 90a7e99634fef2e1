# The wheel's layout: automoe/{lib,include,cmake} beside the Python files. A C++ user finds it with
# find_package(automoe) and -DCMAKE_PREFIX_PATH=$(python -c "import automoe; print(automoe.cmake_prefix_path)").
include(CMakePackageConfigHelpers)
install(TARGETS automoe LIBRARY DESTINATION automoe/lib)
install(DIRECTORY include/automoe DESTINATION automoe/include)
configure_package_config_file(cmake/automoeConfig.cmake.in automoeConfig.cmake INSTALL_DESTINATION automoe/cmake)
write_basic_package_version_file(automoeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/automoeConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/automoeConfigVersion.cmake
  DESTINATION automoe/cmake)

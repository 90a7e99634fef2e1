# nlohmann/json: from the system, else out of the nlohmann-json wheel.
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import os, importlib.util as u; print(os.path.join(u.find_spec('nlohmann_json').submodule_search_locations[0], 'include'))"
  OUTPUT_VARIABLE wheel_include OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_path(AUTOMOE_JSON_INCLUDE nlohmann/json.hpp HINTS ${wheel_include})
if(NOT AUTOMOE_JSON_INCLUDE)
  message(FATAL_ERROR "nlohmann/json.hpp was not found; run `pip install nlohmann-json` or install nlohmann-json3-dev")
endif()
add_library(automoe_json INTERFACE)
target_include_directories(automoe_json SYSTEM INTERFACE ${AUTOMOE_JSON_INCLUDE})

# syncline_room(NAME [SOURCES …] [USES room …] [LINK target …] [TESTS x_test.cc …] [TEST_SUPPORT file.cc …])
#
# One folder under src/ = one static library syncline_NAME (alias syncline::NAME) = one namespace syncline::NAME, and one test
# binary NAME_test from its TESTS. USES names rooms whose headers the room's own headers include; LINK names libraries that stay
# inside the room's .cc files. TEST_SUPPORT sources (doubles that other rooms' tests use too) form syncline_NAME_testing.
function(syncline_room name)
  cmake_parse_arguments(arg "" "" "SOURCES;USES;LINK;TESTS;TEST_SUPPORT" ${ARGN})
  add_library(syncline_${name} STATIC ${arg_SOURCES})
  add_library(syncline::${name} ALIAS syncline_${name})
  target_include_directories(syncline_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  list(TRANSFORM arg_USES PREPEND syncline::)
  target_link_libraries(syncline_${name} PUBLIC ${arg_USES} PRIVATE ${arg_LINK})
  syncline_warnings(syncline_${name})

  if(SYNCLINE_TESTS AND arg_TEST_SUPPORT)
    add_library(syncline_${name}_testing STATIC ${arg_TEST_SUPPORT})
    target_link_libraries(syncline_${name}_testing PUBLIC syncline::${name} PRIVATE fmt::fmt)
    syncline_warnings(syncline_${name}_testing)
    set_property(GLOBAL APPEND PROPERTY SYNCLINE_TESTING syncline_${name}_testing)
  endif()

  if(SYNCLINE_TESTS AND arg_TESTS)
    get_property(testing GLOBAL PROPERTY SYNCLINE_TESTING)
    add_executable(${name}_test ${arg_TESTS})
    target_link_libraries(${name}_test PRIVATE
      syncline::${name} ${testing} ${arg_LINK} fmt::fmt GTest::gmock GTest::gtest_main rapidcheck)
    syncline_warnings(${name}_test)
    add_test(NAME ${name} COMMAND ${name}_test)
  endif()
endfunction()

function(syncline_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor
    -Wno-missing-field-initializers
    $<$<BOOL:${SYNCLINE_WERROR}>:-Werror>)
endfunction()

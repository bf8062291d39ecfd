# The kernels for programs that know nothing of the daemon: one static library with base in it, which needs libm, threads and dlopen
# (of libdl, where libc is without it), the public headers, and expertd-kernels for pkg-config and for CMake's find_package, which find
# them wherever the prefix is moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# A header that does not call itself private to kernels/ is public, but for what other folders of this tree alone use.
file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS *.h)
list(FILTER headers EXCLUDE REGEX "/(convert|finish|scalar_math|device_codes|device_links|device_plan|device_rates)\\.h$")
foreach(header ${headers})
  file(STRINGS ${PROJECT_SOURCE_DIR}/${header} private REGEX "[Pp]rivate to kernels/")
  if(private)
    list(REMOVE_ITEM headers ${header})
  endif()
endforeach()
list(APPEND headers base/dtype.h base/err.h base/tensor.h)
list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE header_files)

# Installed, names begin with expertd_ or EXPERTD_, in the headers as in the library.
set(installed ${CMAKE_CURRENT_BINARY_DIR}/installed)
set(exported ${CMAKE_CURRENT_SOURCE_DIR}/exported-symbols)
add_custom_command(
  OUTPUT ${installed}/symbols
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${installed}
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/install-headers ${exported} ${PROJECT_SOURCE_DIR} ${installed} ${headers}
  DEPENDS install-headers ${exported} ${header_files}
  COMMENT "The public headers with prefixed names"
  VERBATIM)

# One object, whose names are local but for those of exported-symbols: a program that has an arena_init or an exp_f32 of its own must
# neither clash with ours nor lend us its own. tests/kernels_install holds the list against the public headers.
set(whole ${CMAKE_CURRENT_BINARY_DIR}/expertd_kernels.o)
add_custom_command(
  OUTPUT ${whole}
  COMMAND ${CMAKE_LINKER} -r -o ${whole}.all $<TARGET_OBJECTS:kernels> $<TARGET_OBJECTS:base>
  COMMAND ${CMAKE_OBJCOPY} --keep-global-symbols=${exported} ${whole}.all ${whole}.public
  COMMAND ${CMAKE_OBJCOPY} --redefine-syms=${installed}/symbols ${whole}.public ${whole}
  COMMAND ${CMAKE_COMMAND} -E rm ${whole}.all ${whole}.public
  DEPENDS kernels base $<TARGET_OBJECTS:kernels> $<TARGET_OBJECTS:base> ${exported} ${installed}/symbols
  COMMENT "The kernels in one object"
  COMMAND_EXPAND_LISTS VERBATIM)
add_library(expertd_kernels STATIC ${whole})
set_target_properties(expertd_kernels PROPERTIES LINKER_LANGUAGE C EXPORT_NAME kernels)
target_include_directories(expertd_kernels INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(expertd_kernels INTERFACE $<INSTALL_INTERFACE:Threads::Threads> $<INSTALL_INTERFACE:${CMAKE_DL_LIBS}>
                                                $<INSTALL_INTERFACE:m>)

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME kernels) # `cmake --install build --component kernels`: them without the daemon
install(DIRECTORY ${installed}/expertd DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS expertd_kernels EXPORT expertd-kernels ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES examples/grouped_matmul.c examples/quantised_weights.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(FILES README.md MEASUREMENTS.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/kernels)

file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
list(TRANSFORM CMAKE_DL_LIBS PREPEND -l OUTPUT_VARIABLE dl_flags)
configure_file(expertd-kernels.pc.in expertd-kernels.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Before 1.0 names and structures may change, so another minor version is not taken for the one that a project asks for.
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/expertd-kernels)
configure_package_config_file(expertd-kernels-config.cmake.in expertd-kernels-config.cmake INSTALL_DESTINATION ${package}
                              NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT expertd-kernels NAMESPACE expertd:: DESTINATION ${package} FILE expertd-kernels-targets.cmake)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels-config-version.cmake
        DESTINATION ${package})

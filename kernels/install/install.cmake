# The kernels for programs that know nothing of the daemon: one static library with base in it, which needs libm, threads and dlopen
# (of libdl, where libc is without it), the public headers, and expertd-kernels for pkg-config and for CMake's find_package, which find
# them wherever the prefix is moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# One object, in which only names that begin with expertd_ are global: a program's own arena_init or exp_f32 neither clashes with ours nor
# replaces it. tests/kernels_install compares these names with the public headers.
set(whole ${CMAKE_CURRENT_BINARY_DIR}/expertd_kernels.o)
add_custom_command(
  OUTPUT ${whole}
  COMMAND ${CMAKE_LINKER} -r -o ${whole}.all $<TARGET_OBJECTS:kernels> $<TARGET_OBJECTS:base>
  COMMAND ${CMAKE_OBJCOPY} --wildcard "--keep-global-symbol=expertd_*" ${whole}.all ${whole}
  COMMAND ${CMAKE_COMMAND} -E rm ${whole}.all
  DEPENDS kernels base $<TARGET_OBJECTS:kernels> $<TARGET_OBJECTS:base>
  COMMENT "The kernels in one object"
  COMMAND_EXPAND_LISTS VERBATIM)
add_library(expertd_kernels STATIC ${whole})
set_target_properties(expertd_kernels PROPERTIES LINKER_LANGUAGE C EXPORT_NAME kernels)
target_include_directories(expertd_kernels INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(expertd_kernels INTERFACE $<INSTALL_INTERFACE:Threads::Threads> $<INSTALL_INTERFACE:${CMAKE_DL_LIBS}>
                                                $<INSTALL_INTERFACE:m>)

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME kernels) # `cmake --install build --component kernels`: them without the daemon
install(DIRECTORY include/expertd ${PROJECT_SOURCE_DIR}/base/include/expertd DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS expertd_kernels EXPORT expertd-kernels ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES examples/grouped_matmul.c examples/quantised_weights.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(FILES README.md MEASUREMENTS.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/kernels)

file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
list(TRANSFORM CMAKE_DL_LIBS PREPEND -l OUTPUT_VARIABLE dl_flags)
configure_file(install/expertd-kernels.pc.in expertd-kernels.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Before 1.0 names and structures may change, so another minor version is not taken for the one that a project asks for.
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/expertd-kernels)
configure_package_config_file(install/expertd-kernels-config.cmake.in expertd-kernels-config.cmake INSTALL_DESTINATION ${package}
                              NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT expertd-kernels NAMESPACE expertd:: DESTINATION ${package} FILE expertd-kernels-targets.cmake)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels-config-version.cmake
        DESTINATION ${package})

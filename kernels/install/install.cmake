# Installs the kernel library for other programs: a static library that includes base, the public headers, and files for pkg-config and
# CMake's find_package (expertd-kernels), which are relocatable. It needs libm, threads and dlopen (libdl with an older libc).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# One relocatable object in which only symbols that begin with expertd_ are global. So a program's own arena_init or exp_f32 neither
# clashes with the library's nor replaces it. tests/kernels_install compares these symbols with the public headers.
set(object ${CMAKE_CURRENT_BINARY_DIR}/expertd_kernels.o)
add_custom_command(
  OUTPUT ${object}
  COMMAND ${CMAKE_LINKER} -r -o ${object}.all $<TARGET_OBJECTS:kernels> $<TARGET_OBJECTS:base>
  COMMAND ${CMAKE_OBJCOPY} --wildcard "--keep-global-symbol=expertd_*" ${object}.all ${object}
  COMMAND ${CMAKE_COMMAND} -E rm ${object}.all
  DEPENDS kernels base $<TARGET_OBJECTS:kernels> $<TARGET_OBJECTS:base>
  COMMENT "Linking the kernels into one object"
  COMMAND_EXPAND_LISTS VERBATIM)
add_library(expertd_kernels STATIC ${object})
set_target_properties(expertd_kernels PROPERTIES LINKER_LANGUAGE C EXPORT_NAME kernels)
target_include_directories(expertd_kernels INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(expertd_kernels INTERFACE $<INSTALL_INTERFACE:Threads::Threads> $<INSTALL_INTERFACE:${CMAKE_DL_LIBS}>
                                                $<INSTALL_INTERFACE:m>)

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME kernels) # cmake --install build --component kernels
install(DIRECTORY include/expertd ${PROJECT_SOURCE_DIR}/base/include/expertd DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS expertd_kernels EXPORT expertd-kernels ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES examples/grouped_matmul.c examples/quantised_weights.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/kernels)

file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
list(TRANSFORM CMAKE_DL_LIBS PREPEND -l OUTPUT_VARIABLE dl_flags)
configure_file(install/expertd-kernels.pc.in expertd-kernels.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Before 1.0, names and structures may change between minor versions, so find_package accepts the same minor version only.
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/expertd-kernels)
configure_package_config_file(install/expertd-kernels-config.cmake.in expertd-kernels-config.cmake INSTALL_DESTINATION ${package}
                              NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT expertd-kernels NAMESPACE expertd:: DESTINATION ${package} FILE expertd-kernels-targets.cmake)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels-config-version.cmake
        DESTINATION ${package})

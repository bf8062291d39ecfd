# `cmake --install build [--prefix DIR]`: the programs, the interface and the unit, where Debian puts such things.
include(GNUInstallDirs)

foreach(program expertd expertctl)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
install(FILES proto/expertd/v1/expertd.proto DESTINATION ${CMAKE_INSTALL_DATADIR}/expertd/proto/expertd/v1)
install(FILES proto/google/rpc/status.proto DESTINATION ${CMAKE_INSTALL_DATADIR}/expertd/proto/google/rpc)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The unit names the program by its installed path.
if(EXISTS ${CMAKE_SOURCE_DIR}/deploy/systemd/expertd.service.in)
  configure_file(deploy/systemd/expertd.service.in expertd.service @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/expertd.service DESTINATION lib/systemd/system)
elseif(EXISTS ${CMAKE_SOURCE_DIR}/deploy/systemd/expertd.service)
  install(FILES deploy/systemd/expertd.service DESTINATION lib/systemd/system)
endif()

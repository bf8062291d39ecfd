# `cmake --install build [--prefix DIR]`: installs the programs, the .proto files and the systemd unit in Debian's standard folders.
include(GNUInstallDirs)

install(TARGETS expertd expertctl expertd-bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# The modules that --device loads. The programs find them relative to their own folder.
install(TARGETS expertd_sim LIBRARY DESTINATION lib/expertd)
if(TARGET expertd_cuda)
  install(FILES ${CMAKE_BINARY_DIR}/lib/expertd/libexpertd_cuda.so DESTINATION lib/expertd)
endif()
install(DIRECTORY proto/expertd proto/google DESTINATION ${CMAKE_INSTALL_DATADIR}/expertd/proto FILES_MATCHING PATTERN "*.proto")
install(FILES README.md CHANGELOG.md SECURITY.md LICENSE deploy/expertd.yaml DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The unit contains the program's path under `--prefix`. The configuration file is always in /etc.
install(CODE "set(here \"${CMAKE_SOURCE_DIR}\")\nset(build \"${CMAKE_BINARY_DIR}\")\nset(bin \"${CMAKE_INSTALL_BINDIR}\")")
install(CODE [[
  file(READ "${here}/deploy/systemd/expertd.service" unit)
  set(program "${CMAKE_INSTALL_PREFIX}/${bin}/expertd")
  if(program MATCHES " ")
    set(program "\"${program}\"")
  endif()
  string(REPLACE "/usr/bin/expertd" "${program}" unit "${unit}")
  file(WRITE "${build}/expertd.service" "${unit}")
  file(INSTALL "${build}/expertd.service" DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/systemd/system")
]])

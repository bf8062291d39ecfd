# `cmake --install build [--prefix DIR]`: the programs, the interface and the unit, where Debian puts such things.
include(GNUInstallDirs)

install(TARGETS expertd expertctl expertd-bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# What --device loads, found from the programs' folder.
install(TARGETS expertd_sim LIBRARY DESTINATION lib/expertd)
if(TARGET expertd_cuda)
  install(FILES ${CMAKE_BINARY_DIR}/lib/expertd/libexpertd_cuda.so DESTINATION lib/expertd)
endif()
install(DIRECTORY proto/expertd proto/google DESTINATION ${CMAKE_INSTALL_DATADIR}/expertd/proto FILES_MATCHING PATTERN "*.proto")
install(FILES README.md LICENSE deploy/expertd.yaml DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The unit names the program by the path that `--prefix` gives it; its configuration stays in /etc.
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

# All compiler options that a sanitizer, a fuzzer or a compiler needs beside those of a plain release build, in one place.
#   instrument_all()       options of every target that comes after it
#   instrument_kernels()   options of kernels/, whose unrolled loops need exceptions; call it after add_subdirectory(kernels)
#   instrument_copies()    what ThreadSanitizer needs in every library above kernels/
#   instrument_expert()    options of two sources of expert/; call it after add_subdirectory(expert)
set(EXPERTD_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")
option(EXPERTD_FUZZ "Build the fuzzers (clang with libFuzzer)" OFF)
# The fuzzers' kernels are not instrumented, so they can link the kernels of another build by the same clang.
set(EXPERTD_KERNELS_BUILD "" CACHE STRING "With EXPERTD_FUZZ: a build whose kernels are linked as they are; empty: they are compiled")

macro(instrument_all)
  if(EXPERTD_SANITIZE)
    # -g1 keeps the functions and lines that a report names; variables take a third of gcc's time.
    add_compile_options(-g1 -fsanitize=${EXPERTD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${EXPERTD_SANITIZE})
    find_program(EXPERTD_GOLD ld.gold) # links in a third of the time
    if(EXPERTD_GOLD)
      add_link_options(-fuse-ld=gold)
    endif()
  endif()
  if(EXPERTD_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
  elseif(EXPERTD_SANITIZE) # -Og keeps every access of the source, some of which -O2 drops, and halves gcc's time
    add_compile_options(-Og)
  endif()
  if(EXPERTD_SANITIZE OR EXPERTD_FUZZ) # nvcc supports neither
    set(EXPERTD_CUDA OFF CACHE STRING "" FORCE)
  endif()
endmacro()

# ---- kernels/: the table

# Sources, by their path below kernels/.
set(sources_x86 "_(avx2|avx512[a-z0-9]*|amx|amxvbmi)\\.c$")
set(sources_avx512 "_(avx512[a-z0-9]*|amx|amxvbmi)\\.c$")
set(sources_vectorised "_(avx2|avx512[a-z0-9]*|amx|amxvbmi|neon|neondot|neonbf16)\\.c$|^packing/quantised_(codes|pack)\\.c$")
set(sources_rows "^cpu/.*/rows_[a-z0-9]+\\.c$")
set(sources_daemons "^cpu/avx2/(panel_avx2|slices_.*avx2)\\.c$")
set(sources_quantised "/quantised_[^/]*avx512[a-z0-9]*\\.c$")
set(sources_pairs_copies "/quantised_pairs/quantised_(float8|int8|int8_zero_point|nibble|nibble_zero_point|widened)_avx512bf16vbmi\\.c$")

# A row: builds that it is for (all words must hold) | sources, or a target | options. Options of later rows come later on the command line.
set(kernel_options
    # -g1 keeps functions and lines, not variables: tracking each vector variable doubles gcc's compile time.
    "gcc optimised|kernels|-g1"
    # Fuzzed inputs stop before the arithmetic; clang takes minutes to instrument its loops.
    "fuzz|kernels|-fno-sanitize=all"
    # The tests wait for the scalar twins, so these are optimised.
    "sanitized|kernels|-O2"
    # gcc takes minutes for instrumented unrolled loops, which are watched no better than plain ones. -Og alone omits vzeroupper: the
    # dirty upper halves of the registers then slow code without AVX, such as the twins.
    "sanitized|vectorised|-Og"
    "sanitized gcc|vectorised|-fexpensive-optimizations"
    # The copies of rows_* for each dtype become small only when constants are folded.
    "sanitized|rows|-O2"
    # Kernels that daemons of sanitizer builds use: five times slower with -Og.
    "sanitized|daemons|-O3"
    # Every copy of an unrolled loop has vectors with scopes of their own, whose marks take gcc four times as long. Arrays, heap and
    # globals stay watched.
    "address gcc|kernels|-fno-sanitize-address-use-after-scope"
    "address gcc|cuda_sim|-fno-sanitize-address-use-after-scope"
    # ASan checks inlined at every vector access double gcc's compile time, so the many files of quantised kernels call the runtime
    # instead, which is several times slower.
    "address gcc|quantised|--param=asan-instrumentation-with-call-threshold=0"
    # A sanitizer finds faults only in code that runs: instructions that this CPU lacks are left out, which saves a minute.
    "address gcc no_avx512|avx512|-fno-sanitize=all"
    # Checks for NULL and for pointers that wrap triple gcc's time in unrolled loops; AddressSanitizer finds what either leads to.
    "undefined gcc|x86|-fno-sanitize=null,pointer-overflow"
    "undefined gcc|cuda_sim|-fno-sanitize=null,pointer-overflow"
    # One body serves every code of weights: ThreadSanitizer watches it in E4M3's copy, and in AVX2's.
    "thread|pairs_copies|-fno-sanitize=thread"
    # The fibers of the simulated GPU confuse ThreadSanitizer; one thread runs them.
    "thread own_sim|cuda_sim|-fno-sanitize=thread")

# The words that hold for this build.
function(build_words out)
  set(words "")
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    list(APPEND words gcc)
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    list(APPEND words optimised)
  endif()
  if(EXPERTD_FUZZ)
    list(APPEND words fuzz)
  elseif(EXPERTD_SANITIZE)
    list(APPEND words sanitized)
  endif()
  foreach(sanitizer address undefined thread)
    if(EXPERTD_SANITIZE MATCHES "${sanitizer}")
      list(APPEND words ${sanitizer})
    endif()
  endforeach()
  file(STRINGS /proc/cpuinfo flags REGEX "^flags.* avx512vl" LIMIT_COUNT 1)
  if(NOT flags)
    list(APPEND words no_avx512)
  endif()
  if(NOT EXPERTD_SIM_BUILD)
    list(APPEND words own_sim)
  endif()
  set(${out} ${words} PARENT_SCOPE)
endfunction()

function(add_kernel_options where options)
  if(where STREQUAL "kernels" OR where STREQUAL "cuda_sim")
    if(TARGET ${where})
      target_compile_options(${where} PRIVATE ${options})
    endif()
    return()
  endif()
  get_target_property(sources kernels SOURCES)
  foreach(source ${sources})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/kernels ${source})
    if(path MATCHES "${sources_${where}}")
      set_property(SOURCE ${source} DIRECTORY ${PROJECT_SOURCE_DIR}/kernels APPEND PROPERTY COMPILE_OPTIONS ${options})
    endif()
  endforeach()
endfunction()

function(instrument_kernels)
  build_words(words)
  foreach(row ${kernel_options})
    string(REGEX MATCH "^(.*)\\|(.*)\\|(.*)$" row "${row}")
    set(where ${CMAKE_MATCH_2})
    set(options ${CMAKE_MATCH_3})
    string(REPLACE " " ";" missing "${CMAKE_MATCH_1}")
    list(REMOVE_ITEM missing ${words})
    if(NOT missing)
      add_kernel_options(${where} ${options})
    endif()
  endforeach()
endfunction()

# gcc compiles copies of known size into moves, which its ThreadSanitizer does not see; it sees calls. kernels/ is left out: its loops read
# words by memcpy.
macro(instrument_copies)
  if(EXPERTD_SANITIZE MATCHES "thread" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    set(called -fno-builtin-memcpy -fno-builtin-memmove -fno-builtin-memset)
    target_compile_options(base PRIVATE ${called})
    add_compile_options(${called})
  endif()
endmacro()

function(instrument_expert)
  if(NOT EXPERTD_SANITIZE OR EXPERTD_FUZZ)
    return()
  endif()
  set(folder ${PROJECT_SOURCE_DIR}/expert)
  # xxHash forces its functions inline, which -Og does not do.
  set_property(SOURCE ${folder}/checkpoint/digest.c DIRECTORY ${folder} PROPERTY COMPILE_OPTIONS -O1)
  # Fills megabytes of synthetic models; one thread writes each tensor before any other reads it. Instrumented stores would take most of
  # such a start.
  set(fill -O2)
  if(EXPERTD_SANITIZE MATCHES "thread")
    list(APPEND fill -fno-sanitize=thread)
  endif()
  set_property(SOURCE ${folder}/synthetic/synthetic_fill.c DIRECTORY ${folder} PROPERTY COMPILE_OPTIONS "${fill}")
endfunction()

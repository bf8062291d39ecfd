# Everything that sanitizers, fuzzers and their compilers need that a release build does not: the one place for such options.
#   instrument_all()       options of every target that comes after it
#   instrument_kernels()   options of kernels/, whose unrolled loops need exceptions; call it after add_subdirectory(kernels)
#   instrument_copies()    what ThreadSanitizer needs in every library above kernels/
#   instrument_expert()    options of two sources of expert/; call it after add_subdirectory(expert)
set(EXPERTD_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")
option(EXPERTD_FUZZ "Build the fuzzers (clang with libFuzzer)" OFF)
# The fuzzers' kernels are not instrumented, so those of another build by the same clang will do.
set(EXPERTD_KERNELS_BUILD "" CACHE STRING "With EXPERTD_FUZZ: a build whose kernels are linked as they are; empty: they are compiled")
set(gnu FALSE)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  set(gnu TRUE)
endif()

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
  if(EXPERTD_SANITIZE OR EXPERTD_FUZZ) # nvcc knows neither
    set(EXPERTD_CUDA OFF CACHE STRING "" FORCE)
  endif()
endmacro()

# Appends options to the kernels' sources whose path below kernels/ matches REGEX.
function(kernel_sources_add regex)
  get_target_property(all kernels SOURCES)
  foreach(source ${all})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/kernels ${source})
    if(path MATCHES "${regex}")
      set_property(SOURCE ${source} DIRECTORY ${PROJECT_SOURCE_DIR}/kernels APPEND PROPERTY COMPILE_OPTIONS "${ARGN}")
    endif()
  endforeach()
endfunction()

function(instrument_kernels)
  if(NOT EXPERTD_SANITIZE AND NOT EXPERTD_FUZZ)
    return()
  endif()
  set(x86 "_(avx2|avx512[a-z0-9]*|amx|amxvbmi)\\.c$")
  set(wide "_(avx512[a-z0-9]*|amx|amxvbmi)\\.c$")
  set(any_target "_(avx2|avx512[a-z0-9]*|amx|amxvbmi|neon|neondot|neonbf16)\\.c$|^packing/quantised_(codes|pack)\\.c$")
  set(address FALSE)
  if(EXPERTD_SANITIZE MATCHES "address" AND gnu)
    set(address TRUE)
  endif()
  set(undefined FALSE)
  if(EXPERTD_SANITIZE MATCHES "undefined" AND gnu)
    set(undefined TRUE)
  endif()

  if(EXPERTD_FUZZ)
    # Fuzzed inputs stop before the arithmetic; clang takes minutes to instrument its loops.
    target_compile_options(kernels PRIVATE -fno-sanitize=all)
  else()
    # The scalar twins, which the tests wait for.
    target_compile_options(kernels PRIVATE -O2)
    # gcc takes minutes for instrumented unrolled loops, which are watched no better than plain ones. -Og alone omits vzeroupper: the
    # dirty upper halves of the registers then slow code without AVX, such as the twins.
    kernel_sources_add("${any_target}" -Og)
    if(gnu)
      kernel_sources_add("${any_target}" -fexpensive-optimizations)
    endif()
    # Sources that the sanitizers' daemons compute with (-Og makes them five times slower), and rows_*, whose copies for each dtype
    # become small only when constants are folded.
    kernel_sources_add("^cpu/.*/rows_[a-z0-9]+\\.c$" -O2)
    kernel_sources_add("^cpu/avx2/(panel_avx2|slices_.*avx2)\\.c$" -O3)
  endif()
  if(address)
    # Every copy of an unrolled loop has vectors with scopes of their own, whose marks take gcc four times as long. Arrays, heap and
    # globals stay watched.
    target_compile_options(kernels PRIVATE -fno-sanitize-address-use-after-scope)
    if(TARGET cuda_sim)
      target_compile_options(cuda_sim PRIVATE -fno-sanitize-address-use-after-scope)
    endif()
    # ASan checks inlined at every vector access double gcc's compile time, so the many files of quantised kernels call the runtime
    # instead, which is several times slower.
    kernel_sources_add("/quantised_[^/]*avx512[a-z0-9]*\\.c$" --param=asan-instrumentation-with-call-threshold=0)
    # A sanitizer finds faults only in code that runs: instructions that this CPU lacks are left out, which saves a minute.
    file(STRINGS /proc/cpuinfo flags REGEX "^flags.* avx512vl" LIMIT_COUNT 1)
    if(NOT flags)
      kernel_sources_add("${wide}" -fno-sanitize=all)
    endif()
  endif()
  if(undefined)
    # Checks for NULL and for pointers that wrap triple gcc's time in unrolled loops; AddressSanitizer finds what either leads to.
    kernel_sources_add("${x86}" -fno-sanitize=null,pointer-overflow)
    if(TARGET cuda_sim)
      target_compile_options(cuda_sim PRIVATE -fno-sanitize=null,pointer-overflow)
    endif()
  endif()
  if(EXPERTD_SANITIZE MATCHES "thread")
    # One body serves every code of weights: ThreadSanitizer watches it in E4M3's copy, and in AVX2's.
    kernel_sources_add("/quantised_pairs/quantised_(float8|int8|int8_zero_point|nibble|nibble_zero_point|widened)_avx512bf16vbmi\\.c$"
                       -fno-sanitize=thread)
    if(TARGET cuda_sim AND NOT EXPERTD_SIM_BUILD) # its fibers confuse ThreadSanitizer; one thread runs them
      target_compile_options(cuda_sim PRIVATE -fno-sanitize=thread)
    endif()
  endif()
endfunction()

# gcc turns copies of known size into moves, which its ThreadSanitizer does not see; it sees calls. Not for kernels/, whose loops read
# words by memcpy.
macro(instrument_copies)
  if(EXPERTD_SANITIZE MATCHES "thread" AND gnu)
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

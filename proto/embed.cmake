# Writes the bytes of ${input} to ${output} as the C array ${symbol}, and their number as ${symbol}_bytes.
file(READ ${input} hex HEX)
file(SIZE ${input} length)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${output} "#include <stddef.h>\n#include <stdint.h>\n\nextern const uint8_t ${symbol}[];\nextern const size_t ${symbol}_bytes;\n"
                     "const uint8_t ${symbol}[] = {\n${bytes}\n};\nconst size_t ${symbol}_bytes = ${length};\n")

# The loops of port-cost (main.c): 24 products, each with its own accumulator, and 0, 8 or 16 copies of an instruction among them.
#
#   void port_…(char *lines, long iterations)
#
# Instructions read zmm28, zmm29 and the lines at rdi. They write zmm24 to zmm27 in rotation; \d is the register's number.
    .intel_syntax noprefix
    .section .note.GNU-stack, "", @progbits

    .macro port name, text
    .macro op d
    \text
    .endm
    .text
    .irp copies, 0, 8, 16
    .balign 64
    .ifndef port_\name
    .set port_\name, .
    .endif
.Lport_\@_\copies:
    mov rcx, rsi
    kxnorw k1, k1, k1
1:
    .irp r, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23
    vdpbf16ps zmm\r, zmm30, zmm31
    .if (\copies == 8 && \r % 3 == 0) || (\copies == 16 && \r % 3 != 2)
    .altmacro
    op %(24 + \r % 4)
    .noaltmacro
    .endif
    .endr
    dec rcx
    jnz 1b
    vzeroupper
    ret
    .endr
    .purgem op
    .section .data.rel.ro, "aw"
    .quad 2f, .Lport_\@_0, .Lport_\@_8, .Lport_\@_16
    .section .rodata
2:  .asciz "\name"
    .endm

    .section .data.rel.ro, "aw"
    .balign 8
    .globl ports
ports:

    # Multiplications and instructions on the same ports.
    port vfmadd231ps, "vfmadd231ps zmm\d, zmm28, zmm29"
    port vmulps, "vmulps zmm\d, zmm28, zmm29"
    port vpmullw, "vpmullw zmm\d, zmm28, zmm29"
    port vpmaddubsw, "vpmaddubsw zmm\d, zmm28, zmm29"
    # Other arithmetic of floats, conversions.
    port vaddps, "vaddps zmm\d, zmm28, zmm29"
    port vscalefps, "vscalefps zmm\d, zmm28, zmm29"
    port vgetexpps, "vgetexpps zmm\d, zmm28"
    port vcvtdq2ps, "vcvtdq2ps zmm\d, zmm28"
    port vcvtph2ps, "vcvtph2ps zmm\d, ymm28"
    port vcvtne2ps2bf16, "vcvtne2ps2bf16 zmm\d, zmm28, zmm29"
    # Integers.
    port vpaddd, "vpaddd zmm\d, zmm28, zmm29"
    port vpsubb, "vpsubb zmm\d, zmm28, zmm29"
    port vpaddusb, "vpaddusb zmm\d, zmm28, zmm29"
    port vpminub, "vpminub zmm\d, zmm28, zmm29"
    port vpmaxud, "vpmaxud zmm\d, zmm28, zmm29"
    port vpabsb, "vpabsb zmm\d, zmm28"
    port vpavgb, "vpavgb zmm\d, zmm28, zmm29"
    port vpandd, "vpandd zmm\d, zmm28, zmm29"
    port vpternlogd, "vpternlogd zmm\d, zmm28, zmm29, 0xea"
    # Shifts.
    port vpsrld, "vpsrld zmm\d, zmm28, 4"
    port vpsllvd, "vpsllvd zmm\d, zmm28, zmm29"
    port vprold, "vprold zmm\d, zmm28, 4"
    port vpshldd, "vpshldd zmm\d, zmm28, zmm29, 4"
    port vpmultishiftqb, "vpmultishiftqb zmm\d, zmm28, zmm29"
    port vgf2p8affineqb, "vgf2p8affineqb zmm\d, zmm28, zmm29, 0"
    # Permutations.
    port vpermw, "vpermw zmm\d, zmm28, zmm29"
    port vpermb, "vpermb zmm\d, zmm28, zmm29"
    port vpermt2b, "vpermt2b zmm\d, zmm28, zmm29"
    port vpshufb, "vpshufb zmm\d, zmm28, zmm29"
    port vpunpcklbw, "vpunpcklbw zmm\d, zmm28, zmm29"
    port vpmovzxbd, "vpmovzxbd zmm\d, xmm28"
    port vpbroadcastd_r, "vpbroadcastd zmm\d, eax"
    # Masks.
    port vpcmpeqd_k, "vpcmpeqd k2, zmm28, zmm29"
    port vpmovb2m, "vpmovb2m k2, zmm28"
    port vpblendmb, "vpblendmb zmm\d{k1}, zmm28, zmm29"
    # Memory, all in L1.
    port load, "vmovaps zmm\d, [rdi + 64 * (\d - 24)]"
    port load_broadcast, "vpbroadcastd zmm\d, [rdi + 64 * (\d - 24)]"
    port prefetch, "prefetcht0 [rdi + 64 * (\d - 24)]"
    port store, "vmovaps [rdi + 64 * (\d - 24)], zmm\d"
    port store_ymm, "vmovaps [rdi + 64 * (\d - 24)], ymm\d"
    port store_xmm, "vmovaps [rdi + 64 * (\d - 24)], xmm\d"
    port store_general, "mov [rdi + 64 * (\d - 24)], rax"

    .section .data.rel.ro, "aw"
    .quad 0, 0, 0, 0

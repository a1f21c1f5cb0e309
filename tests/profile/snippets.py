"""Short listings in the formats that nvdisasm and the DSL print."""

# A loop that waits on an mbarrier (retry out of line), branches, and holds an inner loop.
SASS = """
\t.section\t.text.kernel_a,"ax",@progbits
kernel_a:
.text.kernel_a:
\t//## File "pkg/forward.py", line 5
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/               @P2 BRA `(.L_other) ;
\t//## File "pkg/warps/softmax.py", line 10
        /*0020*/                   MOV R1, R0 ;
.L_head:
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R1 ;
        /*0040*/              @!P0 BRA `(.L_slow) ;
.L_back:
\t//## File "pkg/numerics/exp2.py", line 7 inlined at "pkg/warps/softmax.py", line 11
        /*0050*/                   MUFU.EX2 R3, R3 ;
        /*0060*/                   FADD2.RM R4, R6.F32x2.HI_LO, 12582912 ;
        /*0070*/                   BRA.U UP1, `(.L_skip) ;
        /*0080*/                   FADD2 R4, R4.F32x2.HI_LO, R6.F32x2.HI_LO ;
        /*0090*/                   FFMA2 R4, R4.F32x2.HI_LO, R6.F32x2.HI_LO, 1 ;
.L_skip:
        /*00a0*/                   F2FP.BF16.F32.PACK_AB R8, R5, R4 ;
.L_inner:
        /*00b0*/                   IADD3 R9, PT, PT, R9, 0x1, RZ ;
        /*00c0*/               @P3 BRA `(.L_inner) ;
        /*00d0*/               @P4 BRA `(.L_head) ;
        /*00e0*/                   EXIT ;
.L_other:
\t//## File "pkg/numerics/mask.py", line 3
        /*00f0*/                   IMAD.MOV.U32 R2, RZ, RZ, 0x1 ;
\t//## File "pkg/warps/load.py", line 20
        /*0100*/                   UTMALDG.2D [UR8], [UR10] ;
        /*0110*/                   LDL R2, [R1] (*"SpillRefill"*);
        /*0120*/                   EXIT ;
.L_slow:
\t//## File "pkg/pipeline/pipes.py", line 30
        /*0130*/                   NANOSLEEP.SYNCS R1, [UR4] ;
        /*0140*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R1 ;
        /*0150*/              @!P0 BRA `(.L_slow) ;
        /*0160*/                   BRA `(.L_back) ;
"""

PTX = """
.version 8.8
.target sm_100a
.visible .entry kernel_b(
\t.param .u64 kernel_b_param_0
)
.maxntid 512
{
\t.reg .pred \t%p<3>;
\t.loc\t1 5 0
\tmov.u32 \t%r1, %tid.x; // comment; with a semicolon
\tsetp.eq.s32 \t%p1, %r1, 0;
\t@%p1 bra \t$L__BB0_2;
\t.loc\t2 10 3
\t// begin inline asm
\t{
\t.reg .pred P1;
\tLAB_WAIT:
\tmbarrier.try_wait.parity.shared.b64 P1, [%r2], %r3, 10000000;
\t@P1 bra.uni DONE;
\tbra.uni LAB_WAIT;
\tDONE:
\t}
\t// end inline asm
\t{ .reg .pred P1; LAB_WAIT: mbarrier.try_wait.parity.shared.b64 P1, [%r2], %r3;
\t@P1 bra.uni DONE; @%p1 bra $L__BB0_2; bra.uni LAB_WAIT; DONE: }
\t.loc\t2 12 5, function_name $L__info_string1, inlined_at 1 7 2
\tadd.s32 \t%r4, %r4, 1;
\t.loc\t3 4 1, function_name $L__info_string0, inlined_at 2 12 5
\tfma.rn.f32x2 \t%rd3, %rd1, %rd2, %rd3;
\tex2.approx.ftz.f32 \t%f1, %f2;
\tst.global.v2.f32 \t[%rd4], {%f1, %f2};
$L__BB0_2:
\t.loc\t1 6 0
\tret;

}
\t.file\t1 "pkg/forward.py"
\t.file\t2 "pkg/warps/softmax.py"
\t.file\t3 "pkg/numerics/exp2.py"
"""

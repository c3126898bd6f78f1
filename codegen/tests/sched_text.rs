//! Text of scheduled kernels: it reads back as it was printed.

use kiln_codegen::ir::{parse, print};

#[test]
fn scheduled_text_reads_back() {
    let text = include_str!("sched/gemm_fp8.ir");
    let kernel = parse::kernel(text).unwrap_or_else(|e| panic!("{e:?}"));
    let printed = print::text(&kernel);
    let again = parse::kernel(&printed).unwrap_or_else(|e| panic!("{e:?}\n{printed}"));
    assert_eq!(printed, print::text(&again));
    assert_eq!(kernel.roles.len(), 2);
    assert_eq!(kernel.rings[0].parts[0].buffers.len(), 3);
}

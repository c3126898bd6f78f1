//! CUDA text of scheduled kernels written by hand (`sched/*.ir`): one snapshot each in `emit/sched_*.sm_90a.cu`.
//!
//! `BLESS=1 cargo test` rewrites the snapshots. Whether the text compiles without spills, and what it computes, is tested
//! where a compiler and a simulator are at hand.

use kiln_codegen::compile;
use kiln_codegen::emit::cuda;
use kiln_codegen::ir::{Stage, parse};
use kiln_codegen::target::Target;
use kiln_codegen::valid::Facts;
use std::path::Path;

#[test]
fn text_is_as_recorded() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut seen = 0;
    let mut files: Vec<_> =
        std::fs::read_dir(tests.join("sched")).expect("readable").filter_map(|e| e.ok()).map(|e| e.path()).collect();
    files.sort();
    for path in files {
        let name = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default().to_string();
        let text = std::fs::read_to_string(&path).expect("readable");
        let kernel = parse::kernel(&text).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        // A plain kernel comes with the schedule that the compiler chooses.
        let source = if kernel.stage == Stage::Plain {
            let built = compile::check(kernel).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            compile::source(&built, Target::Sm90a).unwrap_or_else(|e| panic!("{name}: {e:?}")).source.text
        } else {
            cuda::emit(&kernel, &Facts::default(), Target::Sm90a).unwrap_or_else(|e| panic!("{name}: {e:?}")).text
        };
        let recorded = tests.join("emit").join(format!("sched_{name}.sm_90a.cu"));
        seen += 1;
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&recorded, source).expect("snapshot folder is writable");
            continue;
        }
        let want = std::fs::read_to_string(&recorded).unwrap_or_default();
        let line = want.lines().zip(source.lines()).position(|(a, b)| a != b);
        assert!(
            want == source,
            "{name}: text differs from its snapshot at line {:?}; BLESS=1 rewrites it",
            line.map(|l| l + 1)
        );
    }
    assert!(seen > 0);
}

//! CUDA text of small kernels, built by hand: one snapshot a kernel and target family in `emit/*.cu`.
//!
//! `BLESS=1 cargo test` rewrites the snapshots. Whether the text compiles and computes the right thing is tested where a
//! compiler and a device are at hand; here it must only not change unnoticed.

mod emit_kernels;

use emit_kernels::all;
use kiln_codegen::compile;
use kiln_codegen::target::Target;

fn check(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emit").join(format!("{name}.cu"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).expect("snapshot folder is writable");
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    let line = want.lines().zip(text.lines()).position(|(a, b)| a != b);
    assert!(
        want == text,
        "{name}: text differs from its snapshot at line {:?}; BLESS=1 rewrites it",
        line.map(|l| l + 1)
    );
}

#[test]
fn text_is_as_recorded() {
    for (name, kernel) in all() {
        let built = compile::check(kernel).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        for target in [Target::Sm80, Target::Sm90a] {
            let lowered = compile::source(&built, target).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            check(&format!("{name}.{}", target.name()), &lowered.source.text);
        }
        let blackwell = compile::source(&built, Target::Sm100a).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let hopper = compile::source(&built, Target::Sm90a).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert_eq!(hopper.source, blackwell.source, "{name}: nothing here depends on the generation");
    }
}

#[test]
fn too_much_shared_memory_is_refused_with_a_table() {
    let built = compile::check(emit_kernels::greedy()).expect("valid");
    let errors = compile::source(&built, Target::Sm80).expect_err("160 KiB and more do not fit");
    assert_eq!(errors[0].code, "C0201");
    assert!(errors[0].notes.iter().any(|(n, _)| n.contains("big f32[256, 256]")), "{}", errors[0]);
}

//! Text of small kernels, built by hand: one snapshot a kernel and target family in `emit/*.cu`, one a kernel and arch in
//! `emit/*.asc`, which holds the refusal where the arch cannot run the kernel.
//!
//! `BLESS=1 cargo test` rewrites the snapshots. Whether the text compiles and computes the right thing is tested where a
//! compiler and a device are at hand; here it must only not change unnoticed.

mod emit_kernels;

use emit_kernels::all;
use kiln_codegen::compile;
use kiln_codegen::emit::ascend;
use kiln_codegen::target::Target;

fn check(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emit").join(name);
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
            check(&format!("{name}.{}.cu", target.name()), &lowered.source.text);
        }
        let blackwell = compile::source(&built, Target::Sm100a).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let hopper = compile::source(&built, Target::Sm90a).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert_eq!(hopper.source, blackwell.source, "{name}: nothing here depends on the generation");
    }
}

#[test]
fn ascend_text_is_as_recorded() {
    for (name, kernel) in all() {
        let built = compile::check(kernel).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        for target in [Target::Ascend910b, Target::Ascend950] {
            let text = match compile::source(&built, target) {
                Ok(lowered) => lowered.source.text,
                Err(findings) => format!("{}\n", findings[0]),
            };
            check(&format!("{name}.{}.asc", target.name()), &text);
        }
    }
}

#[test]
fn too_much_ub_is_refused_with_a_table() {
    let built = compile::check(emit_kernels::greedy()).expect("valid");
    let errors = compile::source(&built, Target::Ascend910b).expect_err("256 KiB and more do not fit");
    assert_eq!(errors[0].code, "C0211");
    assert!(errors[0].notes.iter().any(|(n, at)| n.contains("`big`, f32[256, 256]") && at.is_some()), "{}", errors[0]);
}

#[test]
fn in_bring_up_form_every_instruction_waits() {
    let built = compile::check(emit_kernels::rmsnorm(2, 100, 4)).expect("valid");
    for target in [Target::Ascend910b, Target::Ascend950] {
        let text = |bring_up| {
            let options = ascend::Options { bring_up };
            ascend::emit(&built.kernel, &built.facts, target, &options).expect("fits").source.text
        };
        let (usual, careful) = (text(false), text(true));
        let count = |t: &str, word: &str| t.matches(word).count();
        assert_eq!(count(&careful, "SetFlag"), 0);
        assert!(count(&careful, "PipeBarrier<PIPE_ALL>") > count(&usual, "PipeBarrier<PIPE_ALL>"));
        assert!(count(&usual, "SetFlag") > 0);
    }
}

#[test]
fn too_much_shared_memory_is_refused_with_a_table() {
    let built = compile::check(emit_kernels::greedy()).expect("valid");
    let errors = compile::source(&built, Target::Sm80).expect_err("160 KiB and more do not fit");
    assert_eq!(errors[0].code, "C0201");
    assert!(errors[0].notes.iter().any(|(n, _)| n.contains("big f32[256, 256]")), "{}", errors[0]);
}

//! The CUDA compiler without a device: real compilations of a hand-written entry for three architectures, through the
//! cache, from two processes at once.

use kiln_codegen::abi::Signature;
use kiln_codegen::emit::{GridPlan, Source};
use kiln_runtime::compile::{Availability, Toolchain, toolchain};
use kiln_runtime::{Error, Settings};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const AXPY: &str = "extern \"C\" __global__ void __launch_bounds__(128) axpy(float *y, const float *x, float a, int n) {\n\
                    int i = blockIdx.x * 128 + threadIdx.x; // where it comes from\n\
                    if (i < n) y[i] += a * x[i];\n}\n";

fn source(text: &str, entry: &str) -> Source {
    let signature = Signature { entry: entry.into(), args: vec![] };
    Source {
        text: text.into(),
        signature,
        threads: 128,
        shared_bytes: 512,
        cluster: [1; 3],
        cooperative: false,
        dependent_launch: false,
        grid: GridPlan::Blocks,
        npu: None,
    }
}

/// The compiler with a cache of its own; prints why where there is none.
fn compiler(cache: &Path) -> Option<Arc<Toolchain>> {
    let mut settings = Settings::from_env();
    settings.cache_dirs = vec![cache.to_path_buf()];
    match toolchain::ensure(&settings).expect("CI has a compiler") {
        Availability::Ready(t) => Some(t),
        Availability::Skip(why) => {
            println!("skip: {why}");
            None
        }
    }
}

#[test]
fn three_architectures() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(compiler) = compiler(dir.path()) else { return };
    assert!(compiler.version().starts_with("NVRTC 13."), "{}", compiler.version());
    let mut images = vec![];
    for arch in ["sm_80", "sm_90a", "sm_100a"] {
        let (image, report) = compiler.compile_source(&source(AXPY, "axpy"), "axpy", arch).expect("compiles");
        assert!(!report.cached && report.registers > 0 && report.code_bytes > 0, "{arch}: {report:?}");
        assert_eq!((report.spill_bytes, report.stack_bytes, report.shared_bytes), (0, 0, 512), "{arch}");
        assert!(report.missed().is_empty(), "{report:?}");
        // Another position in the user's file is the same code.
        let moved = AXPY.replace("where it comes from", "elsewhere");
        let (again, report) = compiler.compile_source(&source(&moved, "axpy"), "axpy", arch).expect("cached");
        assert!(report.cached && report.registers > 0 && again == image, "{arch}");
        if let Some(counts) = compiler.instructions(&image).expect("disassembles") {
            assert!(counts.keys().any(|k| k.starts_with("LDG")), "{counts:?}");
            assert_eq!(compiler.instructions(&image).expect("cached"), Some(counts));
        } else {
            println!("skip: no nvdisasm");
        }
        images.push(image);
    }
    assert!(images[0] != images[1] && images[1] != images[2]);
}

#[test]
fn refused_source_and_missing_entry() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(compiler) = compiler(dir.path()) else { return };
    let fail = |text: &str| {
        let e = compiler.compile_source(&source(text, "k"), "k", "sm_80").expect_err("no entry");
        assert!(matches!(e, Error::Compiler { .. }));
        assert_eq!(e.exit_code(), 1);
        e.to_string()
    };
    let text = fail("extern \"C\" __global__ void k() { undefined_name(); }");
    assert!(text.contains("undefined_name") && text.contains("k.cu(1)"), "{text}");
    assert!(fail("").contains("the machine code has no entry `k`"));
}

#[test]
fn fma_is_never_contracted() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(compiler) = compiler(dir.path()) else { return };
    let (image, _) = compiler.compile_source(&source(AXPY, "axpy"), "axpy", "sm_90a").expect("compiles");
    let Some(counts) = compiler.instructions(&image).expect("disassembles") else {
        return println!("skip: no nvdisasm");
    };
    assert!(!counts.keys().any(|k| k.starts_with("FFMA")), "{counts:?}");
}

/// Run by the test below in child processes.
#[test]
#[ignore = "`processes_share_a_cache` runs it in child processes"]
fn child() {
    let dir = std::env::var_os("TEST_CACHE").expect("set by the parent");
    let Some(compiler) = compiler(Path::new(&dir)) else { return };
    for i in 0..6 {
        let text = AXPY.replace("a * x[i]", &format!("a * x[i] + {i}.0f"));
        compiler.compile_source(&source(&text, "axpy"), "axpy", "sm_80").expect("compiles");
    }
    assert!(compiler.take_warnings().is_empty());
}

#[test]
fn processes_share_a_cache() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    if compiler(dir.path()).is_none() {
        return;
    }
    let me = std::env::current_exe().expect("a running test has a path");
    let start = || {
        Command::new(&me)
            .args(["--ignored", "--exact", "nvrtc::child"])
            .env("TEST_CACHE", dir.path())
            .spawn()
            .expect("the child starts")
    };
    for mut child in [start(), start()] {
        assert!(child.wait().expect("it ends").success());
    }
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).expect("readable").filter_map(|e| e.ok()).map(|e| e.file_name()).collect();
    assert_eq!(names.len(), 6, "one entry a source, nothing left aside: {names:?}");
}

#[test]
fn a_damaged_entry_is_built_again() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(compiler) = compiler(dir.path()) else { return };
    let (image, _) = compiler.compile_source(&source(AXPY, "axpy"), "axpy", "sm_80").expect("compiles");
    let entry = std::fs::read_dir(dir.path()).expect("readable").next().expect("one entry").expect("readable").path();
    let mut bytes = std::fs::read(&entry).expect("readable");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&entry, bytes).expect("writable");
    let (again, report) = compiler.compile_source(&source(AXPY, "axpy"), "axpy", "sm_80").expect("compiles");
    assert!(!report.cached && again == image);
}

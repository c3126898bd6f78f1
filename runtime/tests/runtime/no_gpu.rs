//! Machines without a driver, and with a driver but without a GPU: errors, never panics. The driver is looked up once a
//! process, so each case runs in a child process of its own, with a stand-in for the library where one is needed.

use std::path::Path;
use std::process::Command;

/// Run by the tests below in a child process; prints what opening a GPU gives.
#[test]
#[ignore = "the other tests of this file run it in a child process"]
fn child() {
    match kiln_runtime::open("cuda:0") {
        Ok(d) => println!("opened {}", d.info().model),
        Err(e) => println!("exit {}: {e}", e.exit_code()),
    }
    let best = kiln_runtime::open("best").expect("falls back to cpu");
    println!("best is {}", best.name());
}

/// Output of [`child`] with a library path.
fn run(libraries: &Path) -> String {
    let me = std::env::current_exe().expect("a running test has a path");
    let out = Command::new(me)
        .args(["--ignored", "--exact", "no_gpu::child", "--nocapture"])
        .env("LD_LIBRARY_PATH", libraries)
        .output()
        .expect("the child starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn without_a_driver() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let text = run(dir.path());
    if text.contains("opened ") {
        println!("skip: this machine has a GPU");
        return;
    }
    if text.contains("the NVIDIA driver is installed but") {
        println!("skip: this machine has a driver");
        return;
    }
    assert!(
        text.contains(
            "exit 3: cuda:0: no NVIDIA driver on this machine (libcuda.so.1 could not be loaded); kernels can be \
             compiled but not run there"
        ),
        "{text}"
    );
    assert!(text.contains("best is cpu"), "{text}");
}

/// A driver whose `cuInit` says that there is no device.
const STAND_IN: &str = r#"
int cuInit(unsigned flags) { (void)flags; return 100; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuGetErrorName(int e, const char **s) { (void)e; *s = "CUDA_ERROR_NO_DEVICE"; return 0; }
int cuGetErrorString(int e, const char **s) { (void)e; *s = "no CUDA-capable device is detected"; return 0; }
"#;

#[test]
fn with_a_driver_but_no_gpu() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = dir.path().join("cuda.c");
    std::fs::write(&source, STAND_IN).expect("writable");
    let library = dir.path().join("libcuda.so.1");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    if !built.is_ok_and(|s| s.success()) {
        assert!(std::env::var_os("CI").is_none(), "`cc` is needed in CI");
        println!("skip: no C compiler (`cc`) to build the stand-in driver");
        return;
    }
    // Names without a version are tried first; a real driver must not be found before the stand-in.
    std::fs::copy(&library, dir.path().join("libcuda.so")).expect("writable");
    let text = run(dir.path());
    assert!(
        text.contains(
            "exit 3: cuda:0: the NVIDIA driver is installed but no usable GPU was found (CUDA_ERROR_NO_DEVICE: no \
             CUDA-capable device is detected); use the device `cpu`"
        ),
        "{text}"
    );
    assert!(text.contains("best is cpu"), "{text}");
}

//! `kiln new` makes a project that works from its own folder: built offline, then checked, run and tuned on the CPU.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_path_buf()
}

fn text(o: &Output) -> String {
    String::from_utf8_lossy(&o.stdout).into_owned() + &String::from_utf8_lossy(&o.stderr)
}

#[test]
fn a_new_project_checks_runs_and_tunes() {
    let dir = tempfile::tempdir().unwrap();
    let project = dir.path().join("my-kernels");
    let made = Command::new(env!("CARGO_BIN_EXE_kiln-command-line"))
        .args(["new", project.to_str().unwrap(), "--kiln", root().to_str().unwrap()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made));
    // The workspace's output folder, in a part of its own: what was built once is built for every later run of this test.
    let target = root().join("target/new-project");
    let cargo = |args: &[&str]| {
        let o = Command::new(env!("CARGO"))
            .args(args)
            // Compiling fast matters more here than running fast.
            .args(["--config", "profile.dev.package.\"*\".opt-level=0"])
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .current_dir(&project)
            .env("CARGO_TARGET_DIR", &target)
            .env("KILN_DEVICE", "cpu")
            .env("KILN_DIR", dir.path().join("kiln"))
            .env("KILN_OFFLINE", "1")
            .env_remove("CI")
            .output()
            .unwrap();
        assert!(o.status.success(), "cargo {args:?}\n{}", text(&o));
        text(&o)
    };
    cargo(&["build", "--offline"]);
    // What `cargo run` would start; its own arguments follow the program's, so the program is called itself.
    let run = |args: &[&str]| {
        let o = Command::new(target.join("debug/my-kernels"))
            .args(args)
            .current_dir(&project)
            .env("KILN_DEVICE", "cpu")
            .env("KILN_DIR", dir.path().join("kiln"))
            .env("KILN_OFFLINE", "1")
            .env_remove("CI")
            .output()
            .unwrap();
        assert!(o.status.success(), "{args:?}\n{}", text(&o));
        text(&o)
    };
    assert!(run(&["list"]).contains("scale_add"));
    assert!(run(&["check"]).contains(" 0 failed"));
    assert!(run(&["run", "--sanitize"]).contains("4 ok, 0 failed"));
    assert!(run(&["tune"]).contains("best"));
    assert!(run(&["emit", "scale_add", "--target", "sm_90a"]).contains("scale_add"));
    // Positions in the project's own files.
    let explained = run(&["explain", "scale_add", "--target", "sm_90a"]);
    assert!(explained.contains("src/scale_add.rs:"), "{explained}");
}

//! The command line is a contract: fields, exit codes, and one clear message for every kind of bad input. Also keeps the
//! support table in `README.md` up to date (`BLESS=1` rewrites it).
#![allow(clippy::print_stderr, reason = "skips are printed with their reason")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_path_buf()
}

/// A command whose records and default device do not depend on the machine's environment.
fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_kiln-command-line"));
    c.args(args).current_dir(root()).env_remove("KILN_DEVICE").env_remove("CI").env("KILN_DEVICE", "cpu");
    c
}

fn kiln(args: &[&str]) -> Output {
    command(args).output().expect("the binary starts")
}

fn stdout(o: &Output) -> String {
    String::from_utf8_lossy(&o.stdout).into_owned()
}

fn stderr(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// The rows of a command that ends with this code.
fn rows(args: &[&str], code: i32) -> Vec<Value> {
    let o = kiln(&[args, &["--json"]].concat());
    assert_eq!(o.status.code(), Some(code), "{args:?}\n{}{}", stdout(&o), stderr(&o));
    let parse = |l: &str| serde_json::from_str::<Value>(l).unwrap_or_else(|e| panic!("{args:?}: {e}: {l}"));
    stdout(&o).lines().map(parse).collect()
}

/// Every row has the version, the command and all fields of the contract.
fn fields(rows: &[Value], cmd: &str, names: &[&str]) {
    assert!(!rows.is_empty(), "{cmd}: no rows");
    for row in rows {
        assert_eq!((&row["v"], &row["cmd"]), (&Value::from(1), &Value::from(cmd)), "{row}");
        for name in names {
            assert!(row.get(name).is_some(), "{cmd}: no field `{name}` in {row}");
        }
    }
}

/// Bad input: the exit code, nothing on stdout, no panic, and a message with all these parts.
fn refused(args: &[&str], code: i32, parts: &[&str]) {
    refused_by(&mut command(args), code, parts);
}

fn refused_by(c: &mut Command, code: i32, parts: &[&str]) {
    let o = c.output().expect("the binary starts");
    let text = stderr(&o);
    assert_eq!(o.status.code(), Some(code), "{c:?}\n{}{text}", stdout(&o));
    assert!(!text.contains("panicked"), "{c:?}\n{text}");
    assert!(text.starts_with("error: "), "{c:?}\n{text}");
    for part in parts {
        assert!(text.contains(part), "{c:?}: expected `{part}` in:\n{text}");
    }
}

/// Something odd that must not matter.
fn works(c: &mut Command) {
    let o = c.output().expect("the binary starts");
    assert_eq!(o.status.code(), Some(0), "{c:?}\n{}{}", stdout(&o), stderr(&o));
}

#[test]
fn list_describes_every_operator() {
    let rows = rows(&["list"], 0);
    fields(&rows, "list", &["op", "kernel", "family", "formula", "targets", "properties", "config"]);
    let ops: BTreeSet<_> = rows.iter().filter_map(|r| r["op"].as_str()).collect();
    for op in ["vector_add", "rmsnorm", "rope_partial", "quant_per_token_fp8", "hadamard", "transpose", "swiglu_quant"]
    {
        assert!(ops.contains(op), "{op} is missing in {ops:?}");
    }
}

#[test]
fn declared_cases_pass_on_the_cpu() {
    let rows = rows(&["run", "--all", "--sanitize"], 0);
    let names = ["op", "case", "device", "status", "output", "metric", "value", "limit", "reason", "ms"];
    fields(&rows, "run", &names);
    assert!(rows.iter().all(|r| r["status"] == "ok" && r["device"] == "cpu"));
}

#[test]
fn golden_cases_pass_and_unknown_operators_are_skipped_with_a_reason() {
    let rows = rows(&["run", "--cases", "tests/data/kernels", "--device", "cpu", "--sanitize"], 0);
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for r in &rows {
        *count.entry(r["status"].as_str().unwrap_or_default()).or_default() += 1;
        if r["status"] == "skip" {
            assert!(r["reason"].as_str().is_some_and(|t| t.contains("no operator")), "{r}");
        }
    }
    assert!(count["ok"] >= 23, "{count:?}");
    assert_eq!(count.get("fail"), None, "{count:?}");
}

#[test]
fn run_chooses_cases() {
    let one = rows(&["run", "rmsnorm", "--only", "zero_rows$"], 0);
    assert_eq!(one.len(), 1);
    assert_eq!(one[0]["case"], "rmsnorm.zero_rows");
    let shaped = rows(&["run", "rmsnorm", "--shape", "tokens=0,hidden=96", "--config", "rows=2"], 0);
    assert_eq!(shaped[0]["case"], "rmsnorm.tokens=0,hidden=96");
    let dtype = rows(&["run", "vector_add", "--case", "n1000_f32", "--dtype", "x=bf16,y=bf16"], 0);
    assert_eq!(dtype[0]["status"], "ok");
}

#[test]
fn emit_prints_every_stage_and_writes_files_whole() {
    for stage in ["plain", "scheduled", "source"] {
        let o = kiln(&["emit", "rmsnorm", "--target", "sm_90a", "--stage", stage]);
        assert_eq!(o.status.code(), Some(0), "{}", stderr(&o));
        assert!(stdout(&o).contains("rmsnorm"), "{stage}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kernel.cu");
    works(&mut command(&["emit", "rmsnorm", "--target", "sm_80", "-o", file.to_str().unwrap()]));
    let printed = stdout(&kiln(&["emit", "rmsnorm", "--target", "sm_80"]));
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim_end(), printed.trim_end());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    // A link stays a link; what is no file is written to, never replaced.
    #[cfg(unix)]
    {
        let link = dir.path().join("link.cu");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        works(&mut command(&["emit", "hadamard", "--target", "sm_80", "-o", link.to_str().unwrap()]));
        assert!(link.is_symlink() && std::fs::read_to_string(&file).unwrap().contains("hadamard"));
        let device = dir.path().join("device");
        std::os::unix::fs::symlink("/dev/null", &device).unwrap();
        works(&mut command(&["emit", "rmsnorm", "--target", "sm_80", "-o", device.to_str().unwrap()]));
        assert!(device.is_symlink());
    }
    let folder = dir.path().to_str().unwrap();
    refused(&["emit", "rmsnorm", "--target", "sm_80", "-o", folder], 2, &[folder, "a file name", "next:"]);
    refused(&["emit", "rmsnorm", "--target", "sm_80", "-o", "/nonexistent/x.cu"], 3, &["/nonexistent/x.cu", "next:"]);
    refused(&["emit", "rmsnorm", "--target", "sm_80", "--stage", "schedule"], 2, &["a schedule fits", "next:"]);
    let schedule = stdout(&kiln(&["emit", "gemm_bf16", "--target", "sm_90a", "--stage", "schedule"]));
    assert!(schedule.contains("s.role("), "{schedule}");
    refused(&["emit", "rmsnorm", "--target", "vm"], 2, &["--stage plain"]);
}

#[test]
fn invariance_rows_name_kernel_target_dimension_and_status() {
    let audit = rows(&["invariance", "audit", "rmsnorm", "vector_add"], 0);
    fields(&audit, "invariance", &["kernel", "target", "dim", "status", "where"]);
    let status =
        |kernel: &str| audit.iter().filter(|r| r["kernel"] == kernel).map(|r| &r["status"]).collect::<Vec<_>>();
    assert_eq!(status("rmsnorm"), ["proven"; 6]);
    assert_eq!(status("vector_add"), ["none"; 6]);
    let check = rows(&["invariance", "check", "rmsnorm", "--device", "cpu"], 0);
    assert!(check.len() == 1 && check[0]["status"] == "tested" && check[0]["dim"] == "t", "{check:?}");
    refused(&["invariance", "audit", "rmsnrom"], 2, &["rmsnorm"]);
}

#[test]
fn explain_names_tiles_barriers_guards_and_work() {
    let text = stdout(&kiln(&["explain", "rmsnorm", "--target", "sm_90a", "--case", "t3_h513_odd"]));
    assert!(text.contains("numerics   "), "{text}");
    for part in [
        "tiles",
        "shared memory map",
        "pipelines",
        "barriers and why",
        "guards kept",
        "reductions",
        "bytes",
        "FLOPs",
        "rmsnorm.rs:",
    ] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
}

#[test]
fn check_compiles_or_says_why_not() {
    let names = ["kernel", "instance", "config", "target", "status", "registers", "spill_bytes", "stack_bytes"];
    let more = ["shared_bytes", "compile_ms", "code_bytes", "instructions", "messages"];
    let vm = rows(&["check", "--all", "--target", "vm"], 0);
    fields(&vm, "check", &names);
    fields(&vm, "check", &more);
    let gpu = rows(&["check", "rmsnorm"], 0);
    for r in &gpu {
        // An Ascend target may have no form of a kernel; it says so with the code of the missing form.
        let no_form = r["target"].as_str().is_some_and(|t| t.starts_with("ascend"))
            && r["status"] == "refused"
            && r["messages"].to_string().contains("error[C03");
        assert!(r["status"] == "ok" || r["status"] == "skip" || no_form, "{r}");
        if r["status"] == "skip" {
            eprintln!("skipped: {}", r["messages"]);
        }
    }
    let mut no_compiler = command(&["check", "rmsnorm", "--target", "sm_90a"]);
    refused_by(no_compiler.env("KILN_NVRTC_DIR", "/nonexistent"), 3, &["/nonexistent", "next step"]);
    let mut any_target = command(&["check", "rmsnorm"]);
    works(any_target.env("KILN_NVRTC_DIR", "/nonexistent"));
}

#[test]
fn bench_measures_and_records() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("records.jsonl");
    let args = ["bench", "rmsnorm", "--shape", "tokens=4,hidden=256", "--device", "cpu", "--record"];
    let rows = rows(&[&args[..], &[file.to_str().unwrap()]].concat(), 0);
    let names = [
        "op",
        "shape",
        "peer",
        "device",
        "status",
        "config",
        "median_us",
        "min_us",
        "p95_us",
        "tflops",
        "gbps",
        "floor_us",
        "of_floor",
        "rel_err",
        "calls",
        "timer",
        "mode",
    ];
    fields(&rows, "bench", &names);
    assert_eq!((&rows[0]["op"], &rows[0]["peer"]), (&"rmsnorm_bf16".into(), &"kiln".into()));
    let line: Value = serde_json::from_str(std::fs::read_to_string(&file).unwrap().trim()).unwrap();
    for name in ["date", "command", "device", "shape"] {
        assert!(line.get(name).is_some(), "{name}");
    }
    assert_eq!(rows[0]["judged"], "all");
    refused(&["bench", "rmsnorm", "--plot", "/nonexistent/x.svg"], 3, &["/nonexistent/x.svg"]);
    refused(&["bench", "rmsnorm", "--record", "/nonexistent/x"], 3, &["/nonexistent/x"]);
    refused(&["bench", "rmsnorm", "--shapes", "/nonexistent/x"], 2, &["/nonexistent/x"]);
}

/// A shape of the library's record: its own row, the library that is not there, what others reached. No drawing misses.
#[test]
fn bench_shows_peers_and_draws() {
    let dir = tempfile::tempdir().unwrap();
    let (drawing, records) = (dir.path().join("roof.svg"), dir.path().join("records.jsonl"));
    let shape = "rows=1,n=4096,k=512,dtype=32";
    let args = ["bench", "topk", "--shape", shape, "--device", "cpu", "--peers", "--plot", drawing.to_str().unwrap()];
    let rows = rows(&[&args[..], &["--record", records.to_str().unwrap()]].concat(), 0);
    assert_eq!((&rows[0]["peer"], &rows[0]["status"]), (&"kiln".into(), &"ok".into()));
    assert!(rows.len() > 1, "{rows:?}");
    for row in &rows[1..] {
        fields(std::slice::from_ref(row), "bench", &["op", "shape", "peer", "median_us", "status", "reason"]);
        assert_eq!(row["status"], "recorded", "{row}");
        assert!(row["reason"].as_str().unwrap().contains("H200"), "{row}");
    }
    assert!(std::fs::read_to_string(&drawing).unwrap().starts_with("<svg"));
    assert_eq!(
        std::fs::read_to_string(&records).unwrap().lines().count(),
        1,
        "what was not measured here is no record"
    );
    let args = ["bench", "gemm_bf16", "--shape", "m=8,n=16,k=64", "--device", "cpu", "--peers"];
    let rows = self::rows(&args, 0);
    assert_eq!((&rows[1]["peer"], &rows[1]["status"]), (&"cublas".into(), &"skip".into()), "{rows:?}");
}

#[test]
fn recorded_configs_are_used_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let o = command(&[args, &["--json"]].concat()).env("KILN_TUNE_DIR", dir.path()).output().unwrap();
        assert_eq!(o.status.code(), Some(0), "{args:?}\n{}{}", stdout(&o), stderr(&o));
        stdout(&o).lines().map(|l| serde_json::from_str::<Value>(l).unwrap()).collect::<Vec<_>>()
    };
    let used = |rows: &[Value]| rows.iter().filter(|r| r["record"].as_str().is_some_and(|f| !f.is_empty())).count();
    assert_eq!(used(&run(&["run", "vector_add"])), 0);
    run(&["tune", "vector_add"]);
    let file = run(&["tune", "list"])[0]["file"].as_str().unwrap().to_string();
    let rows = run(&["run", "vector_add"]);
    assert!(used(&rows) > 0 && rows.iter().all(|r| r["record"] == "" || r["record"] == *file), "{rows:?}");
    assert_eq!(used(&run(&["run", "vector_add", "--untuned"])), 0);
}

#[test]
fn errors_are_rows_where_rows_are_asked_for() {
    let o = kiln(&["run", "nothing_of_this_name", "--json"]);
    assert_eq!(o.status.code(), Some(2));
    let row: Value = serde_json::from_str(stderr(&o).trim()).unwrap_or_else(|e| panic!("{e}: {}", stderr(&o)));
    assert_eq!((&row["v"], &row["cmd"], &row["code"]), (&1.into(), &"error".into(), &2.into()));
    assert!(row["message"].as_str().unwrap().contains("nothing_of_this_name"), "{row}");
    let o = kiln(&["--json", "bench", "--no-such-option"]);
    assert!(serde_json::from_str::<Value>(stderr(&o).trim()).is_ok(), "{}", stderr(&o));
}

#[test]
fn tune_searches_and_keeps_records() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str], records: &Path| {
        let o = command(args).env("KILN_TUNE_DIR", records).output().unwrap();
        assert_eq!(o.status.code(), Some(0), "{args:?}\n{}{}", stdout(&o), stderr(&o));
        stdout(&o).lines().map(|l| serde_json::from_str::<Value>(l).unwrap()).collect::<Vec<_>>()
    };
    let here = dir.path().join("a");
    let rows = run(&["tune", "vector_add", "--json"], &here);
    fields(&rows, "tune", &["kernel", "shape", "config", "median_us", "status", "reason"]);
    assert_eq!(rows.last().unwrap()["status"], "best");
    let listed = run(&["tune", "list", "--json"], &here);
    assert_eq!(listed.len(), 1);
    assert!(listed[0]["shape"].as_object().is_some_and(|s| s.values().all(Value::is_u64)), "{listed:?}");
    assert_eq!(run(&["tune", "verify", "--json"], &here)[0]["status"], "ok");
    let again = run(&["tune", "vector_add", "--json", "--resume"], &here);
    assert_eq!(again.len(), rows.len(), "the same candidates, taken over");
}

#[test]
fn tune_estimates_for_targets_without_a_device() {
    let estimated = rows(&["tune", "gemm_bf16", "--estimate", "sm_90a", "--shape", "m=4096,n=4096,k=4096"], 0);
    fields(&estimated, "tune", &["kernel", "shape", "config", "median_us", "status", "bound", "reason"]);
    let times: Vec<f64> = estimated.iter().filter_map(|r| r["median_us"].as_f64()).collect();
    assert!(times.len() > 1 && times.is_sorted(), "{times:?}");
    // 137 GFLOP at 989 TFLOP/s.
    assert!(times[0] > 139.0, "{times:?}");
    refused(&["tune", "gemm_bf16", "--estimate", "vm"], 2, &["sm_80, sm_90a or sm_100a"]);
    refused(&["tune", "gemm_bf16", "--estimate", "sm_70"], 2, &["sm_70", "--estimate sm_90a"]);
}

#[test]
fn shipped_records_are_of_this_build() {
    let dir = tempfile::tempdir().unwrap();
    let file = root().join("runtime/src/tune/shipped/nvidia-h200.jsonl");
    works(command(&["tune", "import", file.to_str().unwrap()]).env("KILN_TUNE_DIR", dir.path()));
    // A kernel that changed leaves its records behind: tune it again, or take them out.
    works(command(&["tune", "verify"]).env("KILN_TUNE_DIR", dir.path()));
}

#[test]
fn exported_records_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, file) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("all.jsonl"));
    works(command(&["tune", "vector_add"]).env("KILN_TUNE_DIR", &a));
    works(command(&["tune", "export", file.to_str().unwrap()]).env("KILN_TUNE_DIR", &a));
    works(command(&["tune", "import", file.to_str().unwrap()]).env("KILN_TUNE_DIR", &b));
    let names = |d: &Path| -> Vec<_> {
        let all = std::fs::read_dir(d).unwrap().map(|e| e.unwrap().file_name());
        all.filter(|n| n.to_string_lossy().ends_with(".jsonl")).collect()
    };
    assert_eq!(names(&a), names(&b));
    std::fs::write(&file, "{\"file\":\"../x.jsonl\",\"lines\":[]}\n").unwrap();
    refused(&["tune", "import", file.to_str().unwrap()], 2, &["all.jsonl:1", "nothing was imported"]);
}

#[test]
fn doctor_says_what_is_there_and_what_is_skipped() {
    let rows = rows(&["doctor"], 0);
    fields(&rows, "doctor", &["what", "name", "status", "detail"]);
    for what in ["device", "compiler", "folder", "variable", "version"] {
        assert!(rows.iter().any(|r| r["what"] == what), "{what}");
    }
    assert!(rows.iter().any(|r| r["name"] == "cpu" && r["status"] == "ok"));
}

#[test]
fn unknown_names_get_the_nearest_one() {
    refused(&["emit", "rmsnrom", "--target", "sm_90a"], 2, &["`rmsnrom`", "did you mean `rmsnorm`?"]);
    refused(&["emit", "rmsnorm", "--target", "sm_90"], 2, &["`sm_90`", "did you mean `sm_90a`?", "sm_80"]);
    refused(&["run", "rmsnorm", "--config", "row=2"], 2, &["`row`", "did you mean `rows`?"]);
    refused(&["run", "rmsnorm", "--config", "rows=3"], 2, &["rows=3", "1, 2, 4"]);
    refused(&["run", "rmsnorm", "--config", "rows"], 2, &["key=value"]);
    refused(&["bench", "rmsnorm", "--shape", "token=4,hidden=8"], 2, &["`token`", "did you mean `tokens`?"]);
    refused(&["bench", "rmsnorm", "--shape", "tokens=x,hidden=8"], 2, &["`x`", "whole number"]);
    refused(&["bench", "rmsnorm", "--shape", "tokens=4"], 2, &["without `hidden`"]);
    refused(&["run", "rmsnorm", "--case", "nope"], 2, &["`nope`", "zero_rows"]);
    refused(&["run", "rmsnorm", "--dtype", "x=f99"], 2, &["`f99`", "f16"]);
    refused(&["run", "rmsnorm", "--dtype", "q=f16"], 2, &["`q`", "weight"]);
    refused(&["run", "--devise", "cpu"], 2, &["--devise", "--device"]);
    refused(&["simulate"], 2, &["`simulate`", "list", "emit", "check", "doctor"]);
    refused(&["run", "--only", "("], 2, &["--only", "`(`"]);
    refused(&["run", "--only", "matches nothing"], 2, &["none that matches"]);
    refused(&["run", "--case", "nope"], 2, &["--case", "`nope`", "kiln list"]);
    assert_eq!(rows(&["run", "--case", "rmsnorm.zero_rows"], 0).len(), 1);
    refused(&["tune", "vector_add", "--budget", "soon"], 2, &["`soon`", "10m"]);
    refused(&["bench", "rmsnorm", "--judge", "long"], 2, &["--judge", "`long`", "10m"]);
}

#[test]
fn devices_that_are_not_there() {
    refused(&["run", "--device", "gpu"], 2, &["`gpu`", "cuda:N"]);
    refused(&["run", "--device", "cuda:x"], 2, &["cuda:x"]);
    refused(&["run", "--device", "null", "--sanitize"], 2, &["--sanitize", "cpu"]);
    // It computes nothing, so nothing is judged.
    assert!(rows(&["run", "vector_add", "--device", "null"], 0).iter().all(|r| r["status"] == "skip"));
    // With a GPU, one that has this number is still not there.
    refused(&["run", "--device", "cuda:99"], 3, &["cuda:99"]);
}

#[test]
fn sizes_no_machine_has_are_refused_in_words() {
    for command in ["run", "bench", "tune"] {
        let sized = |shape: &str, code| refused(&[command, "rmsnorm", "--shape", shape], code, &["error"]);
        sized("tokens=18446744073709551615,hidden=4", 2);
        sized("tokens=10000000000,hidden=8192", 1);
    }
    let row = &rows(&["run", "rmsnorm", "--shape", "tokens=10000000000,hidden=8192"], 1)[0];
    assert!(row["reason"].as_str().is_some_and(|r| r.contains("choose smaller sizes")), "{row}");
}

#[test]
fn a_kernel_no_target_takes_fails_the_check() {
    let rows = rows(&["check", "rmsnorm", "--shape", "tokens=1,hidden=0"], 1);
    assert!(rows.iter().all(|r| r["status"] == "fail" || r["status"] == "skip"), "{rows:?}");
}

#[test]
fn documents_are_one_json_object() {
    for args in [&["emit", "rmsnorm", "--target", "sm_80"][..], &["explain", "rmsnorm", "--target", "vm"]] {
        let rows = rows(args, 0);
        assert_eq!(rows.len(), 1);
        fields(&rows, args[0], &["kernel", "target", "text"]);
    }
}

#[test]
fn malformed_case_folders() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let manifest = dir.path().join("manifest.json");
    let run = ["run", "--cases", folder];
    refused(&["run", "--cases", "/nonexistent"], 2, &["/nonexistent/manifest.json", "next:"]);
    refused(&run, 2, &["manifest.json", "next:"]);
    for (text, part) in [("{", "valid JSON"), ("{}", "`format` 1"), ("{\"format\":1,\"cases\":[{}]}", "case 0")] {
        std::fs::write(&manifest, text).unwrap();
        refused(&run, 2, &["manifest.json", part]);
    }
    // One real case whose file is missing, cut short, or changed: a failed row, and the others still run.
    let all: Value =
        serde_json::from_str(&std::fs::read_to_string(root().join("tests/data/kernels/manifest.json")).unwrap())
            .unwrap();
    let case = all["cases"].as_array().unwrap().iter().find(|c| c["op"] == "hadamard").unwrap();
    let file = case["file"].as_str().unwrap();
    let bytes = std::fs::read(root().join("tests/data/kernels").join(file)).unwrap();
    std::fs::write(&manifest, serde_json::json!({"format": 1, "cases": [case]}).to_string()).unwrap();
    let reason = |want: &str| {
        let found = rows(&run, 1);
        let text = found[0]["reason"].as_str().unwrap_or_default().to_string();
        assert!(found[0]["status"] == "fail" && text.contains(want) && text.contains(file), "{text}");
    };
    reason("cannot read");
    std::fs::write(dir.path().join(file), &bytes[..bytes.len() - 7]).unwrap();
    reason("truncated");
    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(dir.path().join(file), changed).unwrap();
    reason("sha256");
    // An output the case does not expect would be judged by nobody.
    std::fs::write(dir.path().join(file), &bytes).unwrap();
    let mut partial = case.clone();
    partial["tensors"].as_object_mut().unwrap().retain(|_, t| t["role"] != "output");
    std::fs::write(&manifest, serde_json::json!({"format": 1, "cases": [partial]}).to_string()).unwrap();
    assert!(rows(&run, 1)[0]["reason"].as_str().is_some_and(|r| r.contains("does not expect")));
    // The right hash on a file that is no safetensors file.
    std::fs::write(dir.path().join(file), b"12345678").unwrap();
    let mut lying = case.clone();
    lying["bytes"] = 8.into();
    lying["sha256"] = "ef797c8118f02dfb649607dd5d3f8c7623048c9c063d532cc95c5ed7a898a64f".into();
    std::fs::write(&manifest, serde_json::json!({"format": 1, "cases": [lying]}).to_string()).unwrap();
    reason("header");
}

#[test]
fn odd_environments_do_not_matter() {
    // A cache that cannot be written, and one that is a file.
    works(command(&["run", "vector_add"]).env("KILN_CACHE_DIR", "/proc/nope"));
    let checked = command(&["check", "vector_add"]).env("KILN_CACHE_DIR", "/proc/nope").output().unwrap();
    assert_eq!(checked.status.code(), Some(0));
    let skipped = stdout(&checked).contains("skipped because");
    assert!(skipped || stderr(&checked).contains("not cached"), "{}", stderr(&checked));
    let file = tempfile::NamedTempFile::new().unwrap();
    works(command(&["run", "vector_add"]).env("KILN_CACHE_DIR", file.path()));
    // Output nobody reads.
    let mut child = command(&["list", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let o = child.wait_with_output().unwrap();
    assert_eq!((o.status.code(), stderr(&o).as_str()), (Some(0), ""));
}

#[test]
fn the_tour_runs_everything_and_leaves_sources_to_read() {
    let dir = tempfile::tempdir().unwrap();
    let o = command(&[]).env("KILN_DIR", dir.path()).output().unwrap();
    assert_eq!(o.status.code(), Some(0), "{}{}", stdout(&o), stderr(&o));
    assert!(!stdout(&o).contains("not all written"), "{}", stdout(&o));
    assert!(stdout(&o).contains("rmsnorm") && stdout(&o).contains("device: cpu"), "{}", stdout(&o));
    for target in ["sm_80", "sm_90a", "sm_100a"] {
        assert!(dir.path().join("sources").join(target).join("rmsnorm.cu").exists(), "{target}");
        assert!(dir.path().join("sources").join(target).join("mla_decode_sparse.cu").exists(), "{target}");
    }
}

#[test]
fn projects_are_made_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    refused(&["new", &at("1st")], 2, &["`1st`", "a letter"]);
    refused(&["new", &at("kiln")], 2, &["`kiln`"]);
    refused(&["new", &at("match")], 2, &["`match`", "uses"]);
    refused(&["new", &at("build")], 2, &["`build`", "uses"]);
    refused(&["new", &at("mine"), "--kiln", "/nonexistent"], 2, &["--kiln", "/nonexistent"]);
    refused(&["new", &at("no/such/mine")], 2, &["no/such/mine", "next:"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    works(&mut command(&["new", &at("mine")]));
    refused(&["new", &at("mine")], 2, &["does not exist yet"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn models_are_described_and_compared() {
    let case = "tests/data/models/v3";
    let described = rows(&["model", "inspect", case], 0);
    let names = [
        "dir",
        "architecture",
        "files",
        "tensors",
        "bytes",
        "bytes_by_dtype",
        "layers",
        "cache_bytes_per_token",
        "faults",
    ];
    fields(&described, "model inspect", &names);
    assert_eq!((&described[0]["architecture"], &described[0]["tensors"]), (&"v3".into(), &91.into()));
    // Three layers of 32 + 16 numbers of two bytes.
    assert_eq!(described[0]["cache_bytes_per_token"], 288.0);
    assert!(stdout(&kiln(&["model", "inspect", case])).contains("latent; experts"));

    let checks = rows(&["model", "verify", case, "tests/data/models/v41"], 0);
    fields(&checks, "model verify", &["case", "check", "status", "value", "limit", "device", "reason"]);
    let status = |case: &str| -> BTreeSet<_> {
        checks.iter().filter(|r| r["case"] == case).filter_map(|r| r["status"].as_str()).collect()
    };
    assert_eq!(status("v3"), BTreeSet::from(["ok"]));
    assert_eq!(status("v41"), BTreeSet::from(["ok"]), "{checks:?}");

    refused(&["model"], 2, &["inspect", "verify", "Usage:"]);
    refused(&["model", "verify"], 2, &["<DIRS>"]);
    refused(&["model", "inspect", "no/such"], 2, &["no/such/config.json", "next:"]);
    refused(&["model", "verify", "tests/data/units"], 2, &["tests/data/units/case.json", "next:"]);
    let dir = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(root().join(case).join("config.json")).unwrap();
    std::fs::write(dir.path().join("config.json"), config.replace("\"n_group\": 4", "\"n_group\": 3")).unwrap();
    let at = dir.path().to_str().unwrap();
    refused(
        &["model", "inspect", at],
        2,
        &["`n_group`", "expected a divisor of `n_routed_experts`, 8, got 3", "next:"],
    );
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    refused(&["model", "inspect", at], 2, &["model.safetensors.index.json", "found neither"]);
    let model = root().join("tests/data/models/v32/model.safetensors");
    std::fs::copy(model, dir.path().join("model.safetensors")).unwrap();
    let found = rows(&["model", "inspect", at], 1);
    let faults = found[0]["faults"].as_array().unwrap();
    assert!(faults.iter().any(|f| f["kind"] == "extra" && f["tensor"].as_str().unwrap().contains("indexer")));
}

#[test]
fn tiny_models_are_written_and_generate() {
    let dir = tempfile::tempdir().unwrap();
    for arch in ["v3", "v32", "v4", "v41"] {
        let at = dir.path().join(arch);
        let at = at.to_str().unwrap();
        let made = rows(&["model", "tiny", "--arch", arch, at], 0);
        fields(&made, "model tiny", &["dir", "architecture", "tensors", "bytes"]);
        let found = rows(&["model", "inspect", at], 0);
        assert_eq!((&found[0]["architecture"], &found[0]["tensors"]), (&arch.into(), &made[0]["tensors"]));
        refused(&["model", "tiny", "--arch", arch, at], 2, &["config.json", "next:"]);
        if arch == "v41" {
            // What a tokenizer would give for its n-grams is in no file of the checkpoint.
            refused(&["generate", "--model", at, "--ids", "5"], 2, &["compressed", "next:"]);
            continue;
        }
        let ids = |more: &[&str]| {
            let args = [&["generate", "--model", at, "--ids", "5,17,200", "--max-tokens", "9"], more].concat();
            let made = rows(&args, 0);
            fields(&made, "generate", &["id", "ids", "text", "finish", "usage"]);
            assert!(["stop", "length"].contains(&made[0]["finish"].as_str().unwrap()));
            assert_eq!(made[0]["usage"]["prompt_tokens"], 3);
            made[0]["ids"].clone()
        };
        assert_eq!(ids(&[]), ids(&["--seed", "7"]), "temperature 0 does not draw");
        let drawn = ids(&["--temperature", "5", "--seed", "7"]);
        assert_eq!(drawn, ids(&["--temperature", "5", "--seed", "7"]), "a seed repeats its tokens");
        assert_ne!(drawn, ids(&["--temperature", "5", "--seed", "8"]));
    }
    let at = dir.path().join("v3");
    let at = at.to_str().unwrap();
    refused(&["model", "tiny", "--arch", "v5", at], 2, &["v5", "v41"]);
    refused(&["generate", "--model", at, "--prompt", "x"], 2, &["--prompt", "next:"]);
    refused(&["generate", "--model", at], 2, &["--ids", "next:"]);
    refused(&["generate", "--model", at, "--ids", "256"], 2, &["`vocab_size` 256", "next:"]);
    refused(&["generate", "--model", at, "--ids", "1", "--temperature=-1"], 2, &["--temperature", "next:"]);
    let file = dir.path().join("requests.jsonl");
    std::fs::write(&file, "{\"id\": \"a\", \"ids\": [3]}\n\n{\"ids\": [4, 5]}\n").unwrap();
    let file = file.to_str().unwrap();
    let made = rows(&["generate", "--model", at, "--jsonl", file, "--max-tokens", "2"], 0);
    assert_eq!((made.len(), &made[0]["id"], &made[1]["id"]), (2, &"a".into(), &2.into()));
    std::fs::write(file, "{\"ids\": []}").unwrap();
    refused(&["generate", "--model", at, "--jsonl", file], 2, &["requests.jsonl:1", "next:"]);
}

/// Instances of each operator that have text for a target, of all, and the numbers of the reasons why others have none.
type Texts = BTreeMap<String, (usize, usize, BTreeSet<usize>)>;

/// [`Texts`] of a target; reasons get numbers in the order in which they are met.
fn texts(target: &str, ops: &BTreeMap<String, String>, reasons: &mut Vec<String>) -> Texts {
    let mut all = Texts::new();
    for row in rows(&["check", "--all", "--target", target], 0) {
        let title = row["kernel"].as_str().unwrap();
        let op = &ops[title.split_once('<').map_or(title, |t| t.0)];
        let (ok, count, why) = all.entry(op.clone()).or_default();
        *count += 1;
        if row["status"] == "ok" {
            *ok += 1;
            continue;
        }
        // `error[C0311]: reason` and where; names of a kernel's values and sizes say nothing to a reader of the table.
        let messages = row["messages"].to_string();
        let first = messages.split_once("]: ").map_or(messages.as_str(), |m| m.1);
        let first = first.split("\\n").next().unwrap_or_default();
        let mut reason = String::new();
        for word in first.split_inclusive(' ') {
            let known = ["4 ", "2201 ", "3510 "].contains(&word);
            let sized = word.starts_with(|c: char| c.is_ascii_digit() || c == '[') && !known;
            reason += if sized { if word.ends_with(' ') { "… " } else { "…" } } else { word };
        }
        let reason = reason.replace("… … ", "… ");
        let reason = reason.find("is made by").map_or(reason.clone(), |n| format!("a tile {}", &reason[n..]));
        let at = reasons.iter().position(|r| *r == reason).unwrap_or_else(|| {
            reasons.push(reason);
            reasons.len() - 1
        });
        why.insert(at + 1);
    }
    all
}

/// The table between the markers of `README.md`: which operator has text for which target, and why not.
#[test]
fn the_support_table_of_the_readme_is_current() {
    let (begin, end) = ("<!-- support: begin -->\n", "<!-- support: end -->");
    let list = rows(&["list"], 0);
    let name = |row: &Value, key: &str| row[key].as_str().unwrap().to_string();
    let ops = list.iter().map(|r| (name(r, "kernel"), name(r, "op"))).collect();
    let mut reasons = vec![];
    let npus = ["ascend950", "ascend910b"].map(|t| texts(t, &ops, &mut reasons));
    let mut table = String::from(
        "| operator | formula | `cpu` cases | `sm_80` | `sm_90a` | `sm_100a` | `ascend950` | `ascend910b` |\n",
    );
    table += "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
    let mut seen = BTreeSet::new();
    for row in list {
        let op = row["op"].as_str().unwrap().to_string();
        if !seen.insert(op.clone()) {
            continue;
        }
        let text = |target: &str| {
            let ok = kiln(&["emit", &op, "--target", target]).status.success();
            if ok { "yes" } else { "no" }
        };
        let cases = row["cases"].as_array().unwrap().len();
        let formula = row["formula"].as_str().unwrap().replace('|', "\\|");
        let [a, b, c] = ["sm_80", "sm_90a", "sm_100a"].map(text);
        let [d, e] = [0, 1].map(|n| {
            let (ok, all, why) = npus[n].get(&op).cloned().unwrap_or_default();
            let why: Vec<_> = why.iter().map(usize::to_string).collect();
            if why.is_empty() { "yes".into() } else { format!("{ok} of {all} ({})", why.join(", ")) }
        });
        table += &format!("| `{op}` | {formula} | {cases} | {a} | {b} | {c} | {d} | {e} |\n");
    }
    table +=
        "\nOf instances of an operator (dtypes and fixed sizes of its cases) these have no AscendC text, because:\n\n";
    for (n, reason) in reasons.iter().enumerate() {
        table += &format!("{}. {reason}\n", n + 1);
    }
    let path = root().join("README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = readme.split_once(begin).expect("README.md has the begin marker");
    let (old, tail) = rest.split_once(end).expect("README.md has the end marker");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{head}{begin}{table}{end}{tail}")).unwrap();
    } else {
        assert_eq!(old, table, "the support table of README.md is old; BLESS=1 cargo test -p kiln-tests --test cli");
    }
}

//! Files of requests through `kiln generate`: stopped, killed and started again without a line lost or done twice; bad lines
//! reported by number while the rest goes on. `SLOW=1` runs a thousand requests.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// A folder with the tiny model and a file of requests.
    fn new(lines: &[String]) -> Bench {
        let b = Bench { dir: tempfile::tempdir().unwrap() };
        let o = command(&["model", "tiny", "--arch", "v4", b.path("model").to_str().unwrap()]).output().unwrap();
        assert!(o.status.success(), "{}", stderr(&o));
        std::fs::write(b.path("in.jsonl"), lines.join("\n")).unwrap();
        b
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn command(&self, out: &str) -> Command {
        let [model, input, out] = ["model", "in.jsonl", out].map(|n| self.path(n).to_str().unwrap().to_string());
        let mut c = command(&["generate", "--model", &model, "--jsonl", &input, "--out", &out]);
        c.args(["--max-tokens", "2", "--temperature", "1"]);
        c
    }
    fn lines(&self, out: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(out)).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    }
    /// A run that is stopped by a signal once its file has so many lines.
    fn interrupted(&self, out: &str, at: usize, signal: &str) {
        let mut child = self.command(out).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.wait(out, at, &mut child);
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert!(!child.wait().unwrap().success(), "{signal} ends a run");
    }
    fn wait(&self, out: &str, at: usize, child: &mut Child) {
        let start = Instant::now();
        while self.lines(out).len() < at {
            assert!(child.try_wait().unwrap().is_none(), "it ended before {at} lines");
            assert!(start.elapsed() < Duration::from_secs(120), "no {at} lines");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn command(args: &[&str]) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_kiln-command-line"));
    c.args(args).current_dir(root).env("KILN_DEVICE", "cpu");
    c
}

fn stderr(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

fn stdout(o: &Output) -> String {
    String::from_utf8_lossy(&o.stdout).into_owned()
}

fn requests(count: usize) -> Vec<String> {
    let words = ["a tile", "the kiln", "Hello", "3 bowls", "你好"];
    let line = |i: usize| json!({"id": format!("r{i}"), "prompt": words[i % words.len()], "seed": i}).to_string();
    (0..count).map(line).collect()
}

#[test]
fn a_run_that_is_killed_goes_on_without_losing_or_repeating_a_line() {
    let b = Bench::new(&requests(30));
    let whole = b.command("whole.jsonl").output().unwrap();
    assert_eq!(whole.status.code(), Some(0), "{}", stderr(&whole));
    assert!(stdout(&whole).contains("30 rows added to 0 there; 6"), "{}", stdout(&whole));
    let want = b.lines("whole.jsonl");
    let id = |line: &String| serde_json::from_str::<Value>(line).unwrap()["id"].clone();
    assert_eq!(want.iter().map(id).collect::<Vec<_>>(), (0..30).map(|i| json!(format!("r{i}"))).collect::<Vec<_>>());

    b.interrupted("out.jsonl", 4, "-INT");
    let first = b.lines("out.jsonl").len();
    assert!((4..30).contains(&first));
    b.interrupted("out.jsonl", first + 4, "-KILL");
    // As if it had been killed in the middle of a write.
    let mut text = std::fs::read_to_string(b.path("out.jsonl")).unwrap();
    let done = text.lines().count();
    text += &want[done][..want[done].len() / 2];
    std::fs::write(b.path("out.jsonl"), text).unwrap();
    let rest = b.command("out.jsonl").output().unwrap();
    assert_eq!(rest.status.code(), Some(0), "{}", stderr(&rest));
    assert!(stdout(&rest).contains(&format!("{} rows added to {done} there", 30 - done)), "{}", stdout(&rest));
    assert_eq!(b.lines("out.jsonl"), want);
    // Nothing is left to do, and the mode that asks for what always holds changes nothing.
    for variable in ["KILN_BATCH_INVARIANT", "DEEPINFER_BATCH_INVARIANT"] {
        let again = b.command("out.jsonl").env(variable, "1").output().unwrap();
        assert!(stdout(&again).contains("0 rows added to 30 there"), "{}", stdout(&again));
    }
    assert_eq!(b.lines("out.jsonl"), want);
}

#[test]
fn requests_have_the_same_tokens_in_another_order() {
    let mut lines = requests(6);
    let b = Bench::new(&lines);
    let o = b.command("out.jsonl").env("KILN_BATCH_INVARIANT", "1").output().unwrap();
    assert_eq!(o.status.code(), Some(0), "{}", stderr(&o));
    lines.reverse();
    lines.pop();
    std::fs::write(b.path("in.jsonl"), lines.join("\n")).unwrap();
    let o = b.command("other.jsonl").output().unwrap();
    assert_eq!(o.status.code(), Some(0), "{}", stderr(&o));
    let mut other = b.lines("other.jsonl");
    other.reverse();
    assert_eq!(b.lines("out.jsonl")[1..], other);
}

#[test]
fn bad_lines_are_reported_by_number_and_the_rest_goes_on() {
    let lines = [
        r#"{"id": "a", "ids": [5]}"#,
        r#"{"id": "b", "ids": [5"#,
        "",
        r#"{"id": "c", "messages": [{"role": "robot", "content": "x"}]}"#,
        r#"{"id": "a", "ids": [6]}"#,
        r#"{"id": "d", "ids": [512]}"#,
        r#"{"id": "e", "ids": [7]}"#,
    ];
    let b = Bench::new(&lines.map(str::to_string));
    let o = b.command("out.jsonl").output().unwrap();
    let said = stderr(&o);
    assert_eq!(o.status.code(), Some(2), "{said}");
    for part in [
        "in.jsonl:2: line: expected JSON",
        "in.jsonl:4: messages[0].role",
        "in.jsonl:5: id: expected one that no line before has",
        "in.jsonl:6: ids: expected token ids below `vocab_size` 512",
        "4 of 6 lines",
    ] {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
    assert!(!said.contains("in.jsonl:1:") && !said.contains("panicked"), "{said}");
    let ids: Vec<Value> =
        b.lines("out.jsonl").iter().map(|l| serde_json::from_str::<Value>(l).unwrap()["id"].clone()).collect();
    assert_eq!(ids, ["a", "e"]);
    // With --json each report is an object.
    let o = b.command("out.jsonl").arg("--json").output().unwrap();
    let rows: Vec<Value> = stderr(&o).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(rows.len() == 5 && rows.iter().all(|r| r["cmd"] == "error" && r["code"] == 2), "{rows:?}");
}

#[test]
fn files_that_are_not_this_runs_are_refused() {
    let b = Bench::new(&requests(200));
    let refused = |c: &mut Command, parts: &[&str]| {
        let o = c.output().unwrap();
        let said = stderr(&o);
        assert_eq!(o.status.code(), Some(2), "{said}");
        parts.iter().for_each(|p| assert!(said.contains(p), "no `{p}` in {said}"));
    };
    std::fs::write(b.path("notes.txt"), "my notes\n").unwrap();
    refused(&mut b.command("notes.txt"), &["notes.txt:1", "a row with an `id`", "my notes", "next:"]);
    assert_eq!(b.lines("notes.txt"), ["my notes"]);
    std::fs::write(b.path("other.jsonl"), "{\"id\": \"x\"}\n").unwrap();
    refused(&mut b.command("other.jsonl"), &["other.jsonl", "a row of id \"x\"", "next:"]);
    refused(&mut b.command("in.jsonl"), &["--out", "another file", "next:"]);
    // Two runs into one file.
    let mut child = b.command("out.jsonl").stdout(Stdio::null()).spawn().unwrap();
    b.wait("out.jsonl", 1, &mut child);
    refused(&mut b.command("out.jsonl"), &["out.jsonl", "another run has open", "next:"]);
    child.kill().unwrap();
    child.wait().unwrap();
    // Neither a folder nor a device can be gone on from; the latter may have no end.
    refused(&mut b.command("."), &["a file, which a run can go on from", "next:"]);
    refused(&mut b.command("/dev/zero"), &["/dev/zero", "a file, which a run can go on from"]);
    let o = b.command("no/such/out.jsonl").output().unwrap();
    assert!(o.status.code() == Some(3) && stderr(&o).contains("no/such/out.jsonl"), "{}", stderr(&o));
}

#[test]
fn a_thousand_requests() {
    if std::env::var("SLOW").is_err() {
        return;
    }
    let b = Bench::new(&requests(1000));
    b.interrupted("out.jsonl", 100, "-INT");
    b.interrupted("out.jsonl", 500, "-KILL");
    let o = b.command("out.jsonl").output().unwrap();
    assert_eq!(o.status.code(), Some(0), "{}", stderr(&o));
    let ids: Vec<Value> =
        b.lines("out.jsonl").iter().map(|l| serde_json::from_str::<Value>(l).unwrap()["id"].clone()).collect();
    assert_eq!(ids, (0..1000).map(|i| json!(format!("r{i}"))).collect::<Vec<_>>());
}

//! Runs every `filetests/<family>/*.tile`: a directive line, a kernel, the expectation.
//!
//! `test text`: the kernel must print exactly as written. `test valid`: the verifier's findings stand behind the
//! kernel as comments, and each offending line carries `; error: headline` (or `; warning: ..`). `BLESS=1` rewrites
//! expectations; without it a difference fails.

use kiln_codegen::diag::{Diagnostic, Severity};
use kiln_codegen::ir::{hash, parse, print};
use kiln_codegen::{machine, valid};
use std::path::{Path, PathBuf};

fn files(family: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests").join(family);
    let mut out: Vec<PathBuf> = std::fs::read_dir(&dir)
        .expect("the family has a folder")
        .map(|e| e.expect("readable").path())
        .filter(|p| p.extension().is_some_and(|e| e == "tile"))
        .collect();
    out.sort();
    assert!(!out.is_empty(), "no files for {family}");
    out
}

/// Compares, or rewrites the file under `BLESS=1`.
fn check(path: &Path, found: &str) -> Result<(), String> {
    let want = std::fs::read_to_string(path).expect("readable");
    if want == found {
        return Ok(());
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, found).expect("writable");
        return Ok(());
    }
    let n = want.lines().zip(found.lines()).take_while(|(a, b)| a == b).count();
    let at = |s: &str| s.lines().nth(n).unwrap_or("<end>").to_string();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Err(format!("{name}:{}:\n  expected {}\n  found    {}\n  (BLESS=1 rewrites)", n + 1, at(&want), at(found)))
}

fn run(family: &str, one: impl Fn(&Path, &str) -> Result<String, String>) {
    let mut failures = vec![];
    for path in files(family) {
        let text = std::fs::read_to_string(&path).expect("readable");
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        if first != format!("test {family}") {
            failures.push(format!("{name}:1: expected `test {family}`"));
            continue;
        }
        match one(&path, rest) {
            Ok(found) => failures.extend(check(&path, &format!("{first}\n{found}")).err()),
            Err(e) => failures.push(format!("{name}: {e}")),
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn text() {
    run("text", |_, rest| {
        let kernel = parse::kernel(rest).map_err(|e| e.to_string())?;
        let printed = print::text(&kernel);
        let again = parse::kernel(&printed).map_err(|e| format!("printed text: {e}\n{printed}"))?;
        if print::text(&again) != printed || hash::canonical(&again) != hash::canonical(&kernel) {
            return Err("printing twice gives two texts".into());
        }
        let with = parse::kernel(&print::text_with_positions(&kernel)).map_err(|e| format!("with positions: {e}"))?;
        if print::text(&with) != printed {
            return Err("positions change the kernel".into());
        }
        Ok(printed)
    });
}

#[test]
fn valid() {
    run("valid", |path, rest| {
        // Findings and annotations are made anew, so what is compared is only the kernel itself plus them.
        let lines: Vec<String> = rest
            .lines()
            .map(|l| match l.find("  ; error: ").or(l.find("  ; warning: ")) {
                Some(i) => l[..i].to_string(),
                None => l.to_string(),
            })
            .collect();
        let end = lines.iter().position(|l| l == "}").ok_or("no closing brace in column 1")?;
        let kernel_text = format!("\n{}\n", lines[..=end].join("\n"));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kernel = parse::kernel_in(&name, &kernel_text).map_err(|e| e.to_string())?;
        let again = parse::kernel(&print::text(&kernel)).map_err(|e| format!("printed text: {e}"))?;
        let (guards, found) = match valid::check(&kernel) {
            Ok(facts) => {
                let mut kept: Vec<_> = facts.guards.iter().filter(|g| g.1.contains(&true)).collect();
                kept.sort();
                let kept: Vec<String> = kept
                    .iter()
                    .map(|(op, axes)| {
                        let s = kernel.span_of(kernel.op(**op).span);
                        let axes: Vec<&str> = axes.iter().map(|&k| if k { "check" } else { "proven" }).collect();
                        format!("; guard {}:{} [{}]", s.line, s.column, axes.join(", "))
                    })
                    .collect();
                (kept, facts.warnings)
            }
            Err(found) => (vec![], found),
        };
        if let Err(e) = &valid::check(&again)
            && !found.iter().any(|d| d.severity == Severity::Error)
        {
            return Err(format!("the printed kernel is refused: {}", e[0]));
        }
        let mut out = String::new();
        for (n, line) in lines[..=end].iter().enumerate() {
            out += line;
            let mut seen = vec![];
            for d in found.iter().filter(|d| d.span.line == n as u32 + 2) {
                if !seen.contains(&&d.message) {
                    out += &format!("  ; {}: {}", word(d), d.message);
                    seen.push(&d.message);
                }
            }
            out.push('\n');
        }
        let source = |_: &str, line: u32| lines.get(line as usize - 2).cloned();
        for d in &found {
            out += "\n";
            for l in d.render(&source).lines() {
                out += format!("; {l}").trim_end();
                out += "\n";
            }
        }
        if found.is_empty() && !lines[end + 1..].iter().any(|l| l.starts_with("; error")) {
            out += "\n; accepted\n";
        }
        for g in guards {
            out += &g;
            out += "\n";
        }
        Ok(out)
    });
}

fn word(d: &Diagnostic) -> &'static str {
    match d.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

/// `docs/diagnostics.md` lists the verifier's codes and the simulator's; the table and the code that raises them must agree.
#[test]
fn codes() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut out = String::from(
        "# Diagnostics of the verifier and the simulated chip\n\nGenerated from `codegen/src/valid/codes.rs` and \
         `codegen/src/machine/report.rs` by `cargo test -p kiln-codegen` with `BLESS=1`.\n\n\
         | code | what is wrong | what to do |\n|---|---|---|\n",
    );
    for c in valid::CODES {
        out += &format!("| {} | {} | {} |\n", c.code, c.meaning, c.advice);
    }
    out += "\n## The simulated chip\n\n| code | name | what is wrong | what to do |\n|---|---|---|---|\n";
    for c in machine::Code::ALL {
        out += &format!("| {} | {} | {} | {} |\n", c.id(), c.name(), c.meaning(), c.help().unwrap_or_default());
    }
    let mut raised: Vec<String> = vec![];
    let folders = ["src/valid", "src/valid/rings"].map(|f| std::fs::read_dir(manifest.join(f)).expect("a folder"));
    // A schedule is rejected where it would have been followed.
    let mut files = vec![manifest.join("src/compile.rs")];
    files.extend(folders.into_iter().flatten().map(|e| e.expect("readable").path()));
    for path in files.into_iter().filter(|p| p.is_file()) {
        if path.ends_with("codes.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable");
        let quoted = text.split('"').skip(1).step_by(2);
        raised.extend(quoted.filter(|q| q.len() == 5 && q.starts_with('V')).map(str::to_string));
    }
    for code in &raised {
        assert!(valid::CODES.iter().any(|c| c.code == code), "{code} is raised but not in the table");
    }
    for c in valid::CODES {
        assert!(raised.iter().any(|r| r == c.code), "{} is in the table but never raised", c.code);
    }
    let path = manifest.join("../docs/diagnostics.md");
    if !path.exists() && std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, "").expect("writable");
    }
    check(&path, &out).unwrap_or_else(|e| panic!("{e}"));
}

//! The rules of the repository, checked on its files: crate edges, `unsafe` places, file headers, paths named in the
//! documents, closed matches over ops, no machine paths. Prints the ten largest files.
#![allow(clippy::print_stderr, reason = "the largest files are for the reader")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_path_buf()
}

/// Every file under the root that belongs to the repository, relative, sorted.
fn files() -> Vec<PathBuf> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            // Build output, data of other tools, and data sets with their generators.
            if ["target", ".git", ".cuda", ".device", "shared", "data"].contains(&name.as_str()) {
                continue;
            }
            // Links lead out of the repository.
            if entry.file_type().unwrap().is_dir() {
                walk(&path, out);
            } else if entry.file_type().unwrap().is_file() {
                out.push(path);
            }
        }
    }
    let mut out = vec![];
    walk(&root(), &mut out);
    let mut out: Vec<PathBuf> = out.iter().map(|p| p.strip_prefix(root()).unwrap().to_path_buf()).collect();
    out.sort();
    out
}

fn rust_files() -> Vec<(String, String)> {
    let is_rust = |p: &&PathBuf| p.extension().is_some_and(|e| e == "rs");
    files().iter().filter(is_rust).map(|p| (p.display().to_string(), read(p))).collect()
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(root().join(path)).unwrap()).into_owned()
}

/// Fails with all findings of a rule at once.
fn check(rule: &str, findings: Vec<String>) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}

/// Which of our crates each of our crates may use. `kernels` and `runtime` never see each other.
const EDGES: [(&str, &[&str]); 10] = [
    ("dsl/syntax", &[]),
    ("dsl/macros", &["kiln-dsl-syntax"]),
    ("dsl", &["kiln-dsl-macros", "kiln-codegen"]),
    ("codegen", &[]),
    ("kernels", &["dsl", "kiln-codegen"]),
    ("runtime/ascendc-sys", &[]),
    ("runtime", &["kiln-codegen", "ascendc-sys"]),
    ("model", &["kiln-codegen", "kiln-runtime", "kiln-kernels"]),
    ("cli", &["kiln-model", "kiln-codegen", "kiln-runtime", "kiln-kernels"]),
    (".", &["dsl", "kiln-cli", "kiln-codegen", "kiln-runtime", "kiln-kernels"]),
];

/// Members that may use anything.
const FREE: [&str; 3] = ["tests", "benches", "examples"];

/// Names after which a section of a manifest lists normal dependencies.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut out = vec![];
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[dependencies]" || line == "[build-dependencies]";
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            out.push(name.to_string());
        }
    }
    out
}

#[test]
fn crates_depend_only_along_the_list() {
    let workspace = read(Path::new("Cargo.toml"));
    let ours = |name: &str| ["dsl", "ascendc-sys", "kiln"].contains(&name) || name.starts_with("kiln-");
    let mut findings = vec![];
    let members = workspace.lines().find(|l| l.starts_with("members = ")).expect("a line of members");
    for member in members.split('"').skip(1).step_by(2).chain(["."]) {
        if FREE.contains(&member) {
            continue;
        }
        let Some((_, allowed)) = EDGES.iter().find(|(m, _)| *m == member) else {
            findings.push(format!("{member}: not in the list of crate edges in tests/tidy.rs"));
            continue;
        };
        for name in dependencies(&read(&Path::new(member).join("Cargo.toml"))).iter().filter(|n| ours(n)) {
            if !allowed.contains(&name.as_str()) {
                findings.push(format!("{member} must not depend on {name}"));
            }
        }
    }
    check("crate edges", findings);
}

#[test]
fn every_member_takes_versions_and_lints_from_the_workspace() {
    let mut findings = vec![];
    for path in files().iter().filter(|p| p.file_name().is_some_and(|n| n == "Cargo.toml")) {
        let text = read(path);
        if !text.contains("[lints]\nworkspace = true") {
            findings.push(format!("{}: no `[lints] workspace = true`", path.display()));
        }
        for line in text.lines().filter(|l| path != Path::new("Cargo.toml") && l.contains("version = \"")) {
            findings.push(format!("{}: `{line}` belongs in the workspace table", path.display()));
        }
    }
    check("manifests", findings);
}

/// Places that may contain `unsafe`: the FFI of the runtime, raw declarations, dispatch to vector code.
const UNSAFE: [&str; 9] = [
    "runtime/src/device/cuda",
    "runtime/src/device/ascend",
    "runtime/src/device/sim",
    "runtime/src/launch/pack",
    "runtime/src/memory/mapped",
    "runtime/src/compile/nvrtc",
    "runtime/ascendc-sys/",
    "codegen/src/vm/simd.rs",
    "tests/tidy.rs",
];

#[test]
fn unsafe_stands_only_where_it_is_allowed() {
    let mut findings = vec![];
    for (path, text) in rust_files() {
        // Programs of a test that shows how they are refused; a list of words that name no crate.
        let allowed =
            UNSAFE.iter().any(|p| path.starts_with(p)) || path.contains("/ui/") || path == "cli/src/command/new.rs";
        for (number, line) in code_lines(&text) {
            let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            if words.contains(&"unsafe") && !allowed {
                findings.push(format!("{path}:{number}: {}", line.trim()));
            }
        }
    }
    check("`unsafe` outside its places", findings);
    let roots = ["dsl/src", "dsl/syntax/src", "codegen/src", "kernels/src", "model/src", "cli/src"]
        .map(|d| format!("{d}/lib.rs"));
    let forbids = |r: &String| {
        // The VM's vector dispatch needs the weaker `deny`, which single places lift with a reason.
        let text = read(Path::new(r));
        text.contains("#![forbid(unsafe_code)]") || text.contains("#![deny(unsafe_code)]")
    };
    check("crates without #![forbid(unsafe_code)]", roots.into_iter().filter(|r| !forbids(r)).collect());
}

/// Lines with comments and string contents removed, numbered from 1. Good enough for word searches.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, String)> + '_ {
    text.lines().enumerate().map(|(i, line)| {
        let mut out = String::new();
        let mut quoted = false;
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\\' if quoted => {
                    chars.next();
                }
                '"' => quoted = !quoted,
                '/' if !quoted && chars.peek() == Some(&'/') => break,
                _ if quoted => {}
                _ => out.push(c),
            }
        }
        (i + 1, out)
    })
}

#[test]
fn every_file_says_what_it_is() {
    let mut findings = vec![];
    for (path, text) in rust_files() {
        // Programs whose text is compared with a compiler's messages line by line.
        if path.contains("/ui/") || path.contains("/expand/") {
            continue;
        }
        let first = text.lines().find(|l| !l.starts_with("#!"));
        if !first.is_some_and(|l| l.starts_with("//! ")) {
            findings.push(path);
        } else if text.starts_with("//! Placeholder") {
            findings.push(format!("{path}: a placeholder"));
        }
    }
    check("files that do not open with `//!`", findings);
}

/// What people read first; every path and quotation in them is checked.
const DOCUMENTS: [&str; 7] = [
    "README.md",
    "docs/ARCHITECTURE.md",
    "docs/CONTRIBUTING.md",
    "docs/adding-a-kernel.md",
    "docs/numerics.md",
    "docs/profiling.md",
    "docs/testing.md",
];

/// Words in backquotes that look like paths of this repository.
fn paths_in(text: &str) -> Vec<String> {
    let looks = |w: &&str| {
        (w.contains('/') || w.ends_with(".rs") || w.ends_with(".md") || w.ends_with(".toml"))
            && !w.contains([' ', '{', '*', '<', '$', '(', ':', '|', '='])
            && !w.starts_with("target/")
            && !w.starts_with("//")
            && !w.starts_with('.')
            && !w.starts_with("--")
    };
    text.split('`').skip(1).step_by(2).filter(looks).map(|w| w.trim_end_matches('/').to_string()).collect()
}

#[test]
fn paths_named_in_the_documents_exist() {
    let mut findings = vec![];
    for doc in DOCUMENTS {
        for path in paths_in(&read(Path::new(doc))) {
            if !root().join(&path).exists() {
                findings.push(format!("{doc}: `{path}` does not exist"));
            }
        }
    }
    check("documents and files disagree", findings);
}

/// Quotations: a line "From `path`:", then an indented block. Gives path and text.
fn quotations(text: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = vec![];
    for (i, line) in lines.iter().enumerate() {
        let Some(path) = line.strip_prefix("From `").and_then(|l| l.strip_suffix("`:")) else { continue };
        let block = lines[i + 1..].iter().take_while(|l| l.is_empty() || l.starts_with("    "));
        let block: Vec<&str> = block.map(|l| l.get(4..).unwrap_or_default()).collect();
        out.push((path.to_string(), block.join("\n").trim_matches('\n').to_string()));
    }
    out
}

#[test]
fn quotations_in_the_documents_are_verbatim() {
    let mut findings = vec![];
    let mut seen = 0;
    for doc in DOCUMENTS {
        for (path, quoted) in quotations(&read(Path::new(doc))) {
            seen += 1;
            if quoted.is_empty() || !read(Path::new(&path)).contains(&quoted) {
                findings.push(format!("{doc}: `{path}` does not hold\n{quoted}"));
            }
        }
    }
    check("documents quote what is not there", findings);
    assert!(seen >= 4, "only {seen} quotations were found: the form `From `path`:` may have changed");
}

#[test]
fn matches_over_ops_are_closed() {
    let mut findings = vec![];
    for (path, text) in rust_files().iter().filter(|(p, _)| p.starts_with("codegen/src")) {
        let lines = open_matches(text);
        if !lines.is_empty() {
            findings.push(format!("{path}: {} `_ =>` arms (at {lines:?})", lines.len()));
        }
    }
    check("an op could be forgotten", findings);
}

/// Lines of `_ =>` arms in matches that have an arm beginning with `Op::` at the same indentation. Works on formatted
/// text: arms of one match share their indentation, and the match ends at a line with less.
fn open_matches(text: &str) -> Vec<usize> {
    let lines: Vec<(usize, &str)> = text.lines().map(|l| (l.len() - l.trim_start().len(), l.trim_start())).collect();
    let mut out = vec![];
    for (i, &(indent, line)) in lines.iter().enumerate() {
        if !(line.starts_with("_ =>") || line.starts_with("_ if ")) {
            continue;
        }
        let before = lines[..i].iter().rev().take_while(|(d, l)| l.is_empty() || *d >= indent);
        let ops = before.filter(|(d, l)| *d == indent && l.starts_with("Op::")).count();
        if ops > 0 && line.starts_with("_ =>") {
            out.push(i + 1);
        }
    }
    out
}

#[test]
fn no_file_names_a_machine() {
    // Spelt in parts so that this file does not find itself.
    let marks = [["/ho", "me/"].concat(), ["/ro", "ot/"].concat(), ["/wo", "rk/"].concat(), ["/Us", "ers/"].concat()];
    let mut findings = vec![];
    for path in files().iter().filter(|p| p.file_name().is_none_or(|n| n != "Cargo.lock")) {
        let Ok(text) = String::from_utf8(std::fs::read(root().join(path)).unwrap()) else {
            continue;
        };
        for (i, line) in text.lines().enumerate() {
            if marks.iter().any(|m| line.contains(m.as_str())) {
                findings.push(format!("{}:{}: {}", path.display(), i + 1, line.trim()));
            }
        }
    }
    check("machine paths", findings);
}

#[test]
fn version_licence_and_changelog_agree() {
    // A changelog line accompanies every version; the licence is the one the manifest names.
    let manifest = read(Path::new("Cargo.toml"));
    assert!(manifest.contains("license = \"Apache-2.0\""));
    assert!(read(Path::new("LICENSE")).contains("Apache License"));
    let version = manifest.lines().find_map(|l| l.strip_prefix("version = \"")).expect("a version");
    let version = version.trim_end_matches('"');
    assert!(read(Path::new("docs/CHANGELOG.md")).contains(version), "docs/CHANGELOG.md has no section {version}");
}

#[test]
fn print_the_largest_files() {
    let mut sizes: BTreeMap<usize, String> = BTreeMap::new();
    for (path, text) in rust_files() {
        sizes.insert(text.lines().count(), path);
    }
    let list: Vec<String> = sizes.iter().rev().take(10).map(|(n, p)| format!("{n:>6}  {p}")).collect();
    // Seen with `cargo test -p kiln-tests --test tidy -- --nocapture`.
    eprintln!("the ten largest files, in lines:\n{}", list.join("\n"));
}

#[test]
fn the_heuristics_find_what_they_should() {
    let open = "match op {\n    Op::Break => 1,\n    _ => 2,\n}\n";
    assert_eq!(open_matches(open), [3]);
    let inner = "match op {\n    Op::Break => match x {\n        1 => 1,\n        _ => 2,\n    },\n}\n";
    assert!(open_matches(inner).is_empty());
    assert_eq!(
        dependencies("[dependencies]\ndsl.workspace = true\nx = \"1\"\n[lints]\nworkspace = true\n"),
        ["dsl", "x"]
    );
    assert_eq!(paths_in("see `cli/src/` and `a b/c` and `src/lib.rs`"), ["cli/src", "src/lib.rs"]);
    assert_eq!(
        quotations("From `a.rs`:\n\n    fn a() {\n        b();\n\n    }\n\nText.\n"),
        [("a.rs".to_string(), "fn a() {\n    b();\n\n}".to_string())]
    );
    let lines: Vec<_> = code_lines("let a = \"unsafe\"; // unsafe\n").collect();
    assert!(!lines[0].1.contains("unsafe"));
}

//! `kiln new`: a project of one's own, with one kernel to start from.
//!
//! The files stand in `cli/template`; the project depends on this checkout by path.

use crate::failure::Failure;
use crate::output::Output;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Options of `kiln new`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder to make; its last part is the name of the crate
    pub name: PathBuf,
    /// Checkout of Kiln to depend on; by default the one this program was built from
    #[arg(long, value_name = "PATH")]
    pub kiln: Option<PathBuf>,
}

/// Files of the template: path in the project, text.
const FILES: [(&str, &str); 5] = [
    ("Cargo.toml", include_str!("../../template/manifest.toml")),
    ("src/main.rs", include_str!("../../template/main.rs")),
    ("src/scale_add.rs", include_str!("../../template/scale_add.rs")),
    ("README.md", include_str!("../../template/README.md")),
    (".gitignore", "/target\n"),
];

/// Names a crate must not have: the language, cargo's build folder or this project uses them.
const TAKEN: &str = "kiln test core std alloc proc-macro proc_macro self super crate build deps examples incremental \
     abstract as async await become box break const continue do dyn else enum extern false final fn for gen if impl in \
     let loop macro match mod move mut override priv pub ref return static struct trait true try type typeof unsafe \
     unsized use virtual where while yield";

/// Makes the project, whole or not at all.
///
/// # Errors
/// A name no crate can have, a folder that exists, a checkout that is none, a place that cannot be written.
pub fn run(args: &Args, out: Output) -> Result<(), Failure> {
    let crate_name = crate_name(&args.name)?;
    if args.name.exists() {
        return Err(Failure::usage(
            args.name.display(),
            "a folder that does not exist yet",
            "one that does",
            "choose another name, or remove it",
        ));
    }
    let kiln = checkout(args.kiln.as_deref())?;
    let parent = args.name.parent().filter(|p| !p.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|p| !p.is_dir()) {
        return Err(Failure::usage(
            args.name.display(),
            "a folder to make it in",
            format!("no folder {}", parent.display()),
            "make that folder, or choose another place",
        ));
    }
    let aside = args.name.with_file_name(format!(".{crate_name}.{}.tmp", std::process::id()));
    let done = write_all(&aside, &crate_name, &kiln).and_then(|()| std::fs::rename(&aside, &args.name));
    if let Err(e) = done {
        // What was written so far; the error is the one worth telling.
        let _ = std::fs::remove_dir_all(&aside);
        return Err(Failure::environment(
            args.name.display(),
            "a place to make a folder in",
            e,
            "choose another folder or fix its permissions",
        ));
    }
    if out.json {
        return out.table("new", &[]).row(json!({"name": crate_name, "path": args.name.display().to_string()}));
    }
    out.note(&format!(
        "made {0}\n  next: cd {0} && cargo run -- check    (then: run, tune, emit scale_add --target sm_90a)",
        args.name.display()
    ))
}

fn write_all(folder: &Path, name: &str, kiln: &Path) -> std::io::Result<()> {
    for (path, text) in FILES {
        let path = folder.join(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        // TOML strings in single quotes take any character but the quote itself.
        let text = text.replace("{{name}}", name).replace("{{kiln}}", &kiln.display().to_string());
        std::fs::write(path, text)?;
    }
    // The versions this checkout was tested with; cargo removes what the project does not need.
    let lock = kiln.join("Cargo.lock");
    if lock.exists() {
        std::fs::copy(lock, folder.join("Cargo.lock"))?;
    }
    Ok(())
}

/// The name of the crate: the last part of the path, if a crate can be called so.
fn crate_name(path: &Path) -> Result<String, Failure> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic());
    let rest = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let taken = TAKEN.split_whitespace().any(|t| t == name);
    if first && rest && !taken {
        return Ok(name);
    }
    Err(Failure::usage(
        "NAME",
        "a crate name: a letter, then letters, digits, `-` or `_`",
        if taken { format!("`{name}`, which Rust, cargo or Kiln uses") } else { format!("`{name}`") },
        "choose another name, as in `kiln new my-kernels`",
    ))
}

/// The checkout to depend on, as an absolute path.
fn checkout(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default();
    let path = given.map_or(built_from, Path::to_path_buf);
    let manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap_or_default();
    if !manifest.contains("name = \"kiln\"") || path.display().to_string().contains('\'') {
        let place = if given.is_some() { "--kiln" } else { "the checkout this program was built from" };
        return Err(Failure::usage(
            place,
            "a folder with Kiln's Cargo.toml",
            path.display(),
            "pass --kiln PATH with the path of a checkout",
        ));
    }
    path.canonicalize().map_err(|e| Failure::environment(path.display(), "a readable folder", e, ""))
}

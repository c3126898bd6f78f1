//! Diagnostics for people: with the line of source if the file can be found.

use kiln_codegen::diag::Diagnostic;
use std::path::{Path, PathBuf};

/// A line of a file named by a span: paths there are relative to the folder the crate was built from, so the current
/// folder and its parents are tried.
fn source_line(file: &str, line: u32) -> Option<String> {
    let relative = Path::new(file);
    let mut folder: Option<PathBuf> = std::env::current_dir().ok();
    while let Some(dir) = folder {
        if let Ok(text) = std::fs::read_to_string(dir.join(relative)) {
            return text.lines().nth(line.checked_sub(1)? as usize).map(String::from);
        }
        folder = dir.parent().map(Path::to_path_buf);
    }
    None
}

/// All findings as text.
pub fn render(list: &[Diagnostic]) -> String {
    list.iter().map(|d| d.render(&source_line)).collect::<Vec<_>>().join("\n")
}

/// Headline and position in one line, for rows.
pub fn headline(d: &Diagnostic) -> String {
    format!("{}:{}:{}: [{}] {}", d.span.file, d.span.line, d.span.column, d.code, d.message)
}

//! Rows on stdout: JSON lines for scripts, tables for people. Progress on stderr, only on a terminal.
//!
//! Nothing here decides; commands hand over rows. A closed pipe ends the command quietly.

use crate::failure::Failure;
use serde_json::{Map, Value};
use std::io::{IsTerminal, Write};

/// Version of the row format.
const FORMAT: u64 = 1;

/// Where the output of a command goes.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// JSON lines instead of tables.
    pub json: bool,
}

impl Output {
    /// Writes text as it is.
    ///
    /// # Errors
    /// A closed pipe or a full disk.
    pub fn text(self, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        if !text.ends_with('\n') {
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(())
    }

    /// Text as it is; with `--json` one object with these fields and `text`.
    ///
    /// # Errors
    /// As for [`Output::text`].
    pub fn document(self, cmd: &'static str, fields: &[(&str, &str)], text: &str) -> Result<(), Failure> {
        if !self.json {
            return self.text(text);
        }
        let fields = fields.iter().chain(&[("text", text)]).map(|(k, v)| (k.to_string(), Value::from(*v))).collect();
        self.text(&json_line(cmd, &fields))
    }

    /// A line for people; nothing with `--json`.
    ///
    /// # Errors
    /// As for [`Output::text`].
    pub fn note(self, text: &str) -> Result<(), Failure> {
        if self.json { Ok(()) } else { self.text(text) }
    }

    /// Shows what is being done, on a terminal only.
    pub fn progress(self, text: &str) {
        let mut err = std::io::stderr().lock();
        if err.is_terminal() {
            let short: String = text.chars().take(78).collect();
            // A progress line that cannot be written is no reason to stop.
            let _ = write!(err, "\r\x1b[2K{short}");
            let _ = err.flush();
        }
    }

    /// Shows how many of a number of things are done, how fast they go and how long the rest may take. `here` of them were
    /// done in `seconds`.
    pub fn bar(self, done: usize, all: usize, here: usize, seconds: f64) {
        self.progress(&bar(done, all, here, seconds));
    }

    /// A mistake that does not end the command, to stderr at once: a line, or with `--json` an object.
    pub fn warn(self, text: &str, code: u8) {
        self.progress_end();
        let line = if self.json { error_row(text, code) } else { format!("error: {text}") };
        // Nothing is left to do if stderr is closed.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }

    /// Removes the progress line.
    pub fn progress_end(self) {
        self.progress("");
    }

    /// A table of a command. `columns` are the fields people see; scripts get every field.
    pub fn table(self, cmd: &'static str, columns: &'static [&'static str]) -> Table {
        Table { output: self, cmd, columns, rows: vec![] }
    }
}

/// Rows of one command.
#[derive(Debug)]
pub struct Table {
    output: Output,
    cmd: &'static str,
    columns: &'static [&'static str],
    rows: Vec<Map<String, Value>>,
}

impl Table {
    /// Adds a row: a JSON object without `v` and `cmd`. With `--json` it is written at once.
    ///
    /// # Errors
    /// A closed pipe.
    pub fn row(&mut self, fields: Value) -> Result<(), Failure> {
        let Value::Object(fields) = fields else {
            return Ok(());
        };
        if self.output.json {
            return self.output.text(&json_line(self.cmd, &fields));
        }
        self.rows.push(fields);
        Ok(())
    }

    /// Prints the table for people.
    ///
    /// # Errors
    /// A closed pipe.
    pub fn finish(self) -> Result<(), Failure> {
        self.output.progress_end();
        if self.output.json || self.rows.is_empty() {
            return Ok(());
        }
        self.output.text(&layout(self.columns, &self.rows))
    }
}

/// A failure as a row, for scripts that read JSON: `{"v":1,"cmd":"error","code":2,"message":".."}`.
pub fn error_row(message: &str, code: u8) -> String {
    let fields = [("code", code.into()), ("message", message.into())];
    json_line("error", &fields.map(|(k, v): (_, Value)| (k.to_string(), v)).into_iter().collect())
}

/// `[######......] 12/24  3.1/s  4 s left`.
fn bar(done: usize, all: usize, here: usize, seconds: f64) -> String {
    const WIDTH: usize = 30;
    let full = (done * WIDTH).checked_div(all).unwrap_or(WIDTH).min(WIDTH);
    let mut text = format!("[{}{}] {done}/{all}", "#".repeat(full), ".".repeat(WIDTH - full));
    if here > 0 && seconds > 0.0 {
        let rate = here as f64 / seconds;
        let seconds = (all.saturating_sub(done) as f64 / rate).ceil();
        text += &format!("  {}/s  {}", number(rate), left(seconds as u64));
    }
    text
}

/// `80 s left`, `3 min left`, `2.5 h left`.
pub fn left(seconds: u64) -> String {
    match seconds {
        0..=99 => format!("{seconds} s left"),
        100..=5999 => format!("{} min left", seconds.div_ceil(60)),
        _ => format!("{:.1} h left", seconds as f64 / 3600.0),
    }
}

/// One line of JSON with the fields every row has.
pub fn json_line(cmd: &str, fields: &Map<String, Value>) -> String {
    let mut line = Map::new();
    line.insert("v".into(), FORMAT.into());
    line.insert("cmd".into(), cmd.into());
    line.extend(fields.iter().map(|(k, v)| (k.clone(), v.clone())));
    Value::Object(line).to_string()
}

/// Columns side by side, numbers to the right; a column without any content is left out.
pub fn layout(columns: &[&str], rows: &[Map<String, Value>]) -> String {
    let cells: Vec<Vec<String>> =
        rows.iter().map(|r| columns.iter().map(|c| r.get(*c).map(cell).unwrap_or_default()).collect()).collect();
    let shown: Vec<usize> = (0..columns.len()).filter(|&c| cells.iter().any(|r| !r[c].is_empty())).collect();
    let width = |c: usize| cells.iter().map(|r| r[c].chars().count()).chain([columns[c].len()]).max().unwrap_or(0);
    let numeric = |c: usize| rows.iter().all(|r| r.get(columns[c]).is_none_or(|v| v.is_number() || v.is_null()));
    let line = |texts: &dyn Fn(usize) -> String| {
        let parts: Vec<String> = shown
            .iter()
            .map(|&c| {
                let (text, w) = (texts(c), width(c));
                if numeric(c) { format!("{text:>w$}") } else { format!("{text:<w$}") }
            })
            .collect();
        parts.join("  ").trim_end().to_string() + "\n"
    };
    let mut out = line(&|c| columns[c].to_string());
    for row in &cells {
        out += &line(&|c| row[c].clone());
    }
    out
}

/// Text of a value in a table.
fn cell(v: &Value) -> String {
    match v {
        Value::Null => String::new(),
        Value::Bool(b) => if *b { "yes" } else { "no" }.into(),
        Value::String(s) => one_line(s),
        Value::Number(n) if n.is_f64() => number(n.as_f64().unwrap_or(f64::NAN)),
        Value::Number(n) => n.to_string(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(" "),
        Value::Object(map) => map.iter().map(|(k, v)| format!("{k}={}", cell(v))).collect::<Vec<_>>().join(","),
    }
}

/// A text as one line in which nothing moves the cursor: control characters are written as escapes.
pub fn escaped(text: &str) -> String {
    let part = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(part).collect()
}

/// The first line of a text; with the next one if it only announces that.
fn one_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim);
    match lines.next().unwrap_or_default() {
        first if first.ends_with(':') => format!("{first} {}", lines.next().unwrap_or_default()),
        first => first.to_string(),
    }
}

/// Four significant digits.
pub fn number(x: f64) -> String {
    let a = x.abs();
    if x == 0.0 {
        "0".into()
    } else if !(1e-3..1e6).contains(&a) {
        format!("{x:.2e}")
    } else if a >= 1000.0 {
        format!("{x:.0}")
    } else if a >= 10.0 {
        format!("{x:.1}")
    } else {
        format!("{x:.3}")
    }
}

/// A number as JSON; infinities and NaN, which JSON lacks, as the strings `inf`, `-inf`, `nan`.
pub fn json_number(x: f64) -> Value {
    match serde_json::Number::from_f64(x) {
        Some(n) => Value::Number(n),
        None if x.is_nan() => "nan".into(),
        None if x > 0.0 => "inf".into(),
        None => "-inf".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rows(list: Value) -> Vec<Map<String, Value>> {
        list.as_array().unwrap().iter().map(|r| r.as_object().unwrap().clone()).collect()
    }

    #[test]
    fn tables_align_and_drop_empty_columns() {
        let rows = rows(json!([
            {"op": "rmsnorm", "ms": 1.5, "n": 7, "reason": ""},
            {"op": "hadamard", "ms": 12.25, "n": 1234, "reason": null},
        ]));
        let text = layout(&["op", "ms", "n", "reason"], &rows);
        assert_eq!(text, "op           ms     n\nrmsnorm   1.500     7\nhadamard   12.2  1234\n");
    }

    #[test]
    fn texts_of_models_do_not_reach_the_terminal_raw() {
        assert_eq!(escaped("a\u{1b}[2J\n字"), "a\\u{1b}[2J\\n字");
    }

    #[test]
    fn bars_say_how_far_and_how_long() {
        assert_eq!(bar(0, 4, 0, 0.0), format!("[{}] 0/4", ".".repeat(30)));
        assert_eq!(bar(3, 4, 1, 2.0), format!("[{}{}] 3/4  0.500/s  2 s left", "#".repeat(22), ".".repeat(8)));
        assert!(bar(10, 1000, 10, 10.0).ends_with("1.000/s  17 min left"));
    }

    #[test]
    fn json_lines_carry_version_and_command_first() {
        let rows = rows(json!([{"op": "x", "value": json_number(f64::INFINITY)}]));
        assert_eq!(json_line("run", &rows[0]), r#"{"v":1,"cmd":"run","op":"x","value":"inf"}"#);
    }
}

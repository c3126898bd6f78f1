//! `kiln generate`: continues a prompt, or every line of a file of requests, one row each.
//!
//! With `--out` rows go to a file line by line, and the same command goes on where a run was stopped or killed. A line that
//! cannot be served is reported by its number, and the others go on. The loop is `kiln_model`'s.

use crate::device::{self, DeviceArgs};
use crate::failure::Failure;
use crate::journal::Journal;
use crate::output::{Output, escaped, json_line, number};
use kiln_model::batch::{self, Job, Reader};
use kiln_model::forward::Model;
use kiln_model::generate::Sampling;
use kiln_model::text::tokenizer::Tokenizer;
use kiln_runtime::Device;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Options of `kiln generate`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder of a checkpoint
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Text to continue; needs tokenizer.json in the folder
    #[arg(long, value_name = "T", conflicts_with_all = ["ids", "jsonl"])]
    pub prompt: Option<String>,
    /// The prompt is a user's message, in the model's chat format
    #[arg(long, requires = "prompt")]
    pub chat: bool,
    /// Token ids to continue
    #[arg(long, value_name = "1,2,..", value_delimiter = ',', conflicts_with = "jsonl")]
    pub ids: Vec<usize>,
    /// File with a request a line: {"id": .., "prompt": ..}, with "ids" or "messages" instead, and numbers of its own
    #[arg(long, value_name = "F")]
    pub jsonl: Option<PathBuf>,
    /// File for the rows; started again, the command goes on after the last whole line
    #[arg(long, value_name = "F", requires = "jsonl")]
    pub out: Option<PathBuf>,
    /// New tokens at most
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub max_tokens: usize,
    /// Temperature; 0 takes the best token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f64,
    /// The most likely tokens that stay; 0 for all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Share of probability that stays
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f64,
    /// Least probability that stays, as a share of the largest
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub min_p: f64,
    /// Seed of the draws
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Text that ends the answer; may be given again
    #[arg(long, value_name = "T")]
    pub stop: Vec<String>,
    /// Device
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Generates, one row a prompt.
///
/// # Errors
/// No prompt, numbers out of range, lines that cannot be served, a folder that is no checkpoint, a missing device.
pub fn run(args: &Args, out: Output) -> Result<(), Failure> {
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        seed: args.seed,
    };
    sampling.check()?;
    if args.stop.iter().any(String::is_empty) {
        return Err(Failure::usage("--stop", "a text that is not empty", "an empty one", "leave the option out"));
    }
    if args.prompt.is_none() && args.ids.is_empty() && args.jsonl.is_none() {
        return Err(Failure::usage("--prompt", "a text, --ids or --jsonl", "none", "as in `--prompt \"Hello\"`"));
    }
    let input = args.jsonl.as_deref().map(|f| Input::read(f, args.out.as_deref())).transpose()?;
    let device = device::open(&args.device, false)?;
    let (model, tokenizer) = Model::load_with_tokenizer(&args.model, &device)?;
    let reader = Reader {
        config: &model.config,
        tokenizer: tokenizer.as_ref(),
        max_tokens: args.max_tokens,
        sampling,
        stop: &args.stop,
    };
    if let Some(input) = input {
        return file(&input, &reader, (&model, tokenizer.as_ref(), &device), args.out.as_deref(), out);
    }
    let request = match &args.prompt {
        Some(text) if args.chat => json!({"messages": [{"role": "user", "content": text}]}),
        Some(text) => json!({"prompt": text}),
        None => json!({"ids": args.ids}),
    };
    let job = reader.job(request.as_object().unwrap_or(&Map::new()), json!(0))?;
    let mut table = out.table("generate", &["id", "ids", "text", "finish", "usage"]);
    table.row(shown(batch::run(&model, tokenizer.as_ref(), &job)?.0, out))?;
    table.finish()
}

/// A row as this output has it: for people, text in one line.
fn shown(mut row: Value, out: Output) -> Value {
    if let (false, Some(Value::String(text))) = (out.json, row.get_mut("text")) {
        *text = escaped(text);
    }
    row
}

/// A file of requests.
struct Input {
    path: PathBuf,
    lines: Vec<(usize, Vec<u8>)>,
}

impl Input {
    fn read(path: &Path, out: Option<&Path>) -> Result<Input, Failure> {
        let example = "one request a line, as {\"id\": \"a\", \"prompt\": \"Hello\"}";
        let bytes = std::fs::read(path).map_err(|e| Failure::usage(path.display(), "a readable file", e, example))?;
        let same = |out: &Path| out.canonicalize().is_ok_and(|o| path.canonicalize().is_ok_and(|p| p == o));
        if out.is_some_and(same) {
            return Err(Failure::usage("--out", "another file than --jsonl", path.display(), "choose another name"));
        }
        let lines = bytes.split(|b| *b == b'\n').enumerate().map(|(n, line)| (n, line.trim_ascii().to_vec()));
        let lines: Vec<_> = lines.filter(|(_, line)| !line.is_empty()).collect();
        if lines.is_empty() {
            return Err(Failure::usage(path.display(), "at least one request", "an empty file", example));
        }
        Ok(Input { path: path.to_path_buf(), lines })
    }

    /// Every line read, the bad ones reported by number.
    fn jobs(&self, reader: &Reader<'_>, out: Output) -> Vec<(usize, Job)> {
        let mut seen = BTreeSet::new();
        let mut jobs = vec![];
        for (n, line) in &self.lines {
            let read = match std::str::from_utf8(line) {
                Ok(text) => reader.line(text, json!(n)).map_err(|e| e.to_string()),
                Err(e) => Err(format!("line: expected UTF-8, got {e}\n  next: save the file as UTF-8")),
            };
            match read {
                Ok(job) if !seen.insert(job.id.to_string()) => {
                    let said = format!("id: expected one that no line before has, got {}", job.id);
                    out.warn(&self.at(*n, &format!("{said}\n  next: give each line an id of its own")), 2);
                }
                Ok(job) => jobs.push((*n, job)),
                Err(said) => out.warn(&self.at(*n, &said), 2),
            }
        }
        jobs
    }

    fn at(&self, n: usize, said: &str) -> String {
        format!("{}:{}: {said}", self.path.display(), n + 1)
    }
}

/// All lines of a file, to stdout or to a file that keeps what is done.
fn file(
    input: &Input,
    reader: &Reader<'_>,
    (model, tokenizer, device): (&Model, Option<&Tokenizer>, &Device),
    to: Option<&Path>,
    out: Output,
) -> Result<(), Failure> {
    let mut journal = to.map(Journal::open).transpose()?;
    let jobs = input.jobs(reader, out);
    let mut refused = input.lines.len() - jobs.len();
    let known: BTreeSet<String> = jobs.iter().map(|(_, j)| j.id.to_string()).collect();
    let done = journal.as_ref().map_or_else(BTreeSet::new, |j| j.done.clone());
    if let (Some(to), Some(id)) = (to, done.iter().find(|id| !known.contains(*id))) {
        let want = format!("rows of requests in {}", input.path.display());
        return Err(Failure::usage(to.display(), want, format!("a row of id {id}"), "choose another file for --out"));
    }
    let mut table = out.table("generate", &["id", "ids", "text", "finish", "usage"]);
    let (start, mut made, mut tokens) = (Instant::now(), 0, 0);
    let waiting: Vec<&(usize, Job)> = jobs.iter().filter(|(_, j)| !done.contains(&j.id.to_string())).collect();
    for (n, job) in &waiting {
        out.bar(done.len() + made, jobs.len(), made, start.elapsed().as_secs_f64());
        let (row, new) = match batch::run(model, tokenizer, job) {
            Ok(done) => done,
            Err(e) if batch::is_of_request(&e) => {
                refused += 1;
                out.warn(&input.at(*n, &e.to_string()), 2);
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        match (&mut journal, row) {
            (Some(journal), Value::Object(row)) => journal.add(&json_line("generate", &row))?,
            (_, row) => table.row(shown(row, out))?,
        }
        made += 1;
        tokens += new;
    }
    out.bar(done.len() + made, jobs.len(), made, start.elapsed().as_secs_f64());
    table.finish()?;
    if let Some(to) = to {
        let seconds = start.elapsed().as_secs_f64();
        let rate = number(tokens as f64 / seconds.max(1e-9));
        out.note(&format!(
            "{}: {made} rows added to {} there; {tokens} tokens in {} s, {rate} a second on {}",
            to.display(),
            done.len(),
            number(seconds),
            device.name()
        ))?;
    }
    if refused > 0 {
        let all = input.lines.len();
        return Err(Failure::Usage(format!("{refused} of {all} lines of {} were refused", input.path.display())));
    }
    Ok(())
}

//! `kiln generate`: continues prompts of token ids with a model, one row a prompt.
//!
//! Text needs a tokenizer, which this version does not read: `--prompt` says so. The loop is `kiln_model`'s.

use crate::device::{self, DeviceArgs};
use crate::failure::Failure;
use crate::output::Output;
use kiln_model::forward::Model;
use kiln_model::generate::{Finish, Request, generate};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Options of `kiln generate`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder of a checkpoint
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Text to continue
    #[arg(long, value_name = "T", conflicts_with_all = ["ids", "jsonl"])]
    pub prompt: Option<String>,
    /// Token ids to continue
    #[arg(long, value_name = "1,2,..", value_delimiter = ',', conflicts_with = "jsonl")]
    pub ids: Vec<usize>,
    /// File with a request a line: {"id": .., "ids": [..]}
    #[arg(long, value_name = "F")]
    pub jsonl: Option<PathBuf>,
    /// New tokens at most
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub max_tokens: usize,
    /// Temperature; 0 takes the best token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f64,
    /// Seed of the draws
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Device
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Generates, one row a prompt.
///
/// # Errors
/// No prompt, a malformed file, a folder that is no checkpoint, a missing device.
pub fn run(args: &Args, out: Output) -> Result<(), Failure> {
    let requests = requests(args)?;
    let device = device::open(&args.device, false)?;
    let model = Model::load(&args.model, &device)?;
    let mut table = out.table("generate", &["id", "ids", "finish", "usage"]);
    for (id, ids) in requests {
        let prompt = ids.len();
        let request = Request { ids, max_tokens: args.max_tokens, temperature: args.temperature, seed: args.seed };
        let made = generate(&model, &request)?;
        let finish = match made.finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
        };
        let usage = json!({"prompt_tokens": prompt, "completion_tokens": made.ids.len()});
        table.row(json!({"id": id, "ids": made.ids, "text": null, "finish": finish, "usage": usage}))?;
    }
    table.finish()
}

fn requests(args: &Args) -> Result<Vec<(Value, Vec<usize>)>, Failure> {
    if args.prompt.is_some() {
        return Err(Failure::usage(
            "--prompt",
            "token ids, since tokenizers are not read yet",
            "text",
            "encode the text elsewhere and use --ids or --jsonl",
        ));
    }
    if let Some(file) = &args.jsonl {
        return lines(file);
    }
    if args.ids.is_empty() {
        return Err(Failure::usage("--ids", "at least one token id", "none", "as in `--ids 5,17,3`"));
    }
    Ok(vec![(json!(0), args.ids.clone())])
}

fn lines(file: &Path) -> Result<Vec<(Value, Vec<usize>)>, Failure> {
    let example = "one request a line, as {\"id\": \"a\", \"ids\": [5, 17]}";
    let text =
        std::fs::read_to_string(file).map_err(|e| Failure::usage(file.display(), "a readable file", e, example))?;
    let mut out = vec![];
    for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let place = format!("{}:{}", file.display(), n + 1);
        let json: Value = serde_json::from_str(line).map_err(|e| Failure::usage(&place, "JSON", e, example))?;
        let ids = json.get("ids").and_then(Value::as_array).and_then(|l| {
            l.iter().map(|x| x.as_u64().map(|x| x as usize)).collect::<Option<Vec<_>>>().filter(|l| !l.is_empty())
        });
        let Some(ids) = ids else {
            return Err(Failure::usage(&place, "`ids`, a list of token ids", json, example));
        };
        out.push((json.get("id").cloned().unwrap_or_else(|| n.into()), ids));
    }
    if out.is_empty() {
        return Err(Failure::usage(file.display(), "at least one request", "an empty file", example));
    }
    Ok(out)
}

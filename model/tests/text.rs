//! Tokenizers, text out of tokens, and generation on a tiny model with text: what is asked for, and what is refused.

use kiln_model::batch::{self, Job, Reader};
use kiln_model::config;
use kiln_model::forward::Model;
use kiln_model::generate::{Finish, Request, Sampling, generate};
use kiln_model::operators::rows_of;
use kiln_model::text::chat::{ChatEncoding, V4};
use kiln_model::text::prompt::Prompt;
use kiln_model::text::tokenizer::Tokenizer;
use kiln_model::tiny;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::OnceLock;

fn tokenizer() -> Tokenizer {
    tiny::tokenizer::parsed().expect("a tokenizer")
}

/// Ids that the Python package `tokenizers` 0.23.3, whose patterns another library matches, gives for the same file.
#[test]
fn texts_have_the_ids_of_another_implementation() {
    let t = tokenizer();
    for (text, ids) in [
        ("Hello there, thank you", &[386, 261, 298, 47, 377, 395, 35, 124, 354][..]),
        (
            "The kiln's fire: 1234567 tiles!!\n\n  and   a\tbowl",
            &[
                87, 260, 371, 42, 118, 369, 61, 35, 52, 53, 54, 55, 56, 57, 58, 381, 36, 36, 13, 13, 35, 274, 35, 35,
                279, 12, 101, 355,
            ],
        ),
        (
            "你好，世界 カタカナ 👋🏽 ñé",
            &[
                231, 192, 163, 232, 168, 192, 242, 191, 143, 231, 187, 153, 234, 152, 143, 35, 230, 133, 174, 230, 133,
                194, 230, 133, 174, 230, 134, 141, 35, 243, 162, 148, 142, 243, 162, 146, 192, 35, 198, 180, 198, 172,
            ],
        ),
        (
            "<｜User｜>hi</think>",
            &[63, 242, 192, 159, 88, 118, 268, 242, 192, 159, 65, 107, 108, 63, 50, 119, 107, 283, 110, 65],
        ),
        ("   \n \r\n x", &[35, 35, 35, 13, 35, 16, 13, 35, 123]),
        ("a_b+c=d;(e)[f]{g}", &[100, 98, 101, 46, 102, 64, 103, 62, 43, 104, 44, 94, 105, 96, 126, 106, 128]),
        (
            "café naïve Ünïcödé",
            &[
                102, 100, 105, 198, 172, 35, 113, 100, 198, 178, 319, 35, 198, 159, 113, 198, 178, 102, 198, 185, 103,
                198, 172,
            ],
        ),
        ("", &[]),
        ("\u{301}x", &[207, 132, 123]),
    ] {
        let got = t.encode(text).expect("encodes");
        assert_eq!(got, ids, "{text}");
        assert_eq!(t.decode(&got), text);
    }
}

#[test]
fn special_tokens_are_ids_and_typed_ones_are_letters() {
    let t = tokenizer();
    let mut p = Prompt::default();
    p.special("<｜User｜>").plain("<｜User｜>").special("</think>");
    let ids = t.encode_prompt(&p).expect("encodes");
    let user = t.special("<｜User｜>").expect("there");
    assert_eq!((ids[0], ids.iter().filter(|id| **id == user).count()), (user, 1));
    assert_eq!(t.decode(&ids), p.text);
    let mut lost = Prompt::default();
    let said = t.encode_prompt(lost.special("<｜nothing｜>")).expect_err("not there").to_string();
    assert!(said.contains("tokenizer.json") && said.contains("`<｜nothing｜>`"), "{said}");
}

#[test]
fn files_that_are_no_tokenizer_are_refused_by_name() {
    let whole = tiny::tokenizer::tokenizer();
    let text = whole.to_string();
    let refused = |bytes: &[u8], vocab: usize, wants: &[&str]| {
        let said = Tokenizer::parse(Path::new("some/tokenizer.json"), bytes, vocab).expect_err("refused").to_string();
        for want in wants.iter().chain(&["some/tokenizer.json", "expected", "got", "next: "]) {
            assert!(said.contains(want), "no `{want}` in {said}");
        }
    };
    // Cut anywhere, also within a character.
    for cut in (0..text.len()).step_by(text.len() / 41).chain([text.len() - 1]) {
        refused(&text.as_bytes()[..cut], 512, &[]);
    }
    let with = |change: &dyn Fn(&mut Value)| {
        let mut json = whole.clone();
        change(&mut json);
        json.to_string()
    };
    refused(with(&|j| j["decoder"] = Value::Null).as_bytes(), 512, &["ByteLevel"]);
    refused(with(&|j| j["normalizer"] = json!({"type": "Lowercase"})).as_bytes(), 512, &["`normalizer`"]);
    let drop = |j: &mut Value| {
        j["model"]["vocab"].as_object_mut().expect("a map").remove("~");
    };
    refused(with(&drop).as_bytes(), 512, &["none for byte 0x7e"]);
    refused(text.as_bytes(), 511, &["`vocab_size` 511", "511 for"]);
    refused(b"[]", 512, &[]);
    let none = Tokenizer::open(Path::new("no/such/tokenizer.json"), 512).expect_err("not there").to_string();
    assert!(none.contains("no/such/tokenizer.json") && none.contains("next: "), "{none}");
}

struct Tiny {
    model: Model,
    tokenizer: Tokenizer,
}

/// The bundled kind of model, opened once.
fn tiny() -> &'static Tiny {
    static TINY: OnceLock<Tiny> = OnceLock::new();
    TINY.get_or_init(|| {
        let dir = folder("v4");
        let device = kiln_runtime::open("cpu").expect("always there");
        let (model, tokenizer) = Model::load_with_tokenizer(dir.path(), &device).expect("loads");
        Tiny { model, tokenizer: tokenizer.expect("there is one") }
    })
}

fn folder(arch: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, bytes) in tiny::files(arch, 1).expect("a family").expect("a family") {
        std::fs::write(dir.path().join(name), bytes).expect("writes");
    }
    dir
}

fn request(text: &str, max_tokens: usize, sampling: Sampling) -> Request {
    Request { ids: tiny().tokenizer.encode(text).expect("encodes"), max_tokens, sampling, stop: vec![] }
}

const DRAWN: Sampling = Sampling { temperature: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 3 };

#[test]
fn tokens_are_those_of_the_operators_reference() {
    use kiln_kernels::sampling::sample::{Settings, reference};
    let t = tiny();
    let settings = [
        Sampling::default(),
        DRAWN,
        Sampling { top_k: 5, ..DRAWN },
        Sampling { top_p: 0.5, ..DRAWN },
        Sampling { min_p: 0.3, seed: u64::MAX, ..DRAWN },
        Sampling { top_k: 40, top_p: 0.9, min_p: 0.01, temperature: 0.7, seed: 9 },
    ];
    for s in settings {
        let r = request("The potter", 4, s);
        let made = generate(&t.model, None, &r, &mut |_, _| ()).expect("generates");
        // Fed again whole: the row before each token gives that token.
        let whole = [&r.ids[..], &made.ids].concat();
        let logits = t.model.step(&whole, &mut t.model.start()).expect("steps").logits;
        for (i, id) in made.ids.iter().enumerate() {
            let at = r.ids.len() + i;
            let row = t.model.ops.download(&rows_of(&logits, at - 1, 1)).expect("downloads");
            let row: Vec<f64> = row.into_iter().map(f64::from).collect();
            let seed = (s.seed as i64, at as i64);
            let want = Settings { temperature: s.temperature, top_k: s.top_k, top_p: s.top_p, min_p: s.min_p, seed };
            assert_eq!(reference(&row, &|_| true, want), *id as i64, "{s:?} at {at}");
        }
    }
}

#[test]
fn text_comes_in_whole_characters_and_ends_before_a_stop_text() {
    let t = tiny();
    let r = request("Hello", 24, DRAWN);
    let (mut pieces, mut tokens) = (vec![], vec![]);
    let made = generate(&t.model, Some(&t.tokenizer), &r, &mut |id, text| {
        tokens.extend(id);
        pieces.push(text.to_string());
    })
    .expect("generates");
    let text = made.text.expect("text");
    assert_eq!((pieces.concat(), tokens.len(), made.finish), (text.clone(), 24, Finish::Length));
    assert_eq!(text, t.tokenizer.decode(&made.ids));
    // A text from the middle of it stops at its first place, and the tokens end there.
    let middle: String = text.chars().skip(12).take(3).collect();
    let at = text.find(&middle).expect("there");
    let stopped = Request { stop: vec!["never said".into(), middle], ..r };
    let mut seen = String::new();
    let made = generate(&t.model, Some(&t.tokenizer), &stopped, &mut |_, text| seen.push_str(text)).expect("generates");
    assert_eq!((made.finish, made.text.as_deref(), seen.as_str()), (Finish::Stop, Some(&text[..at]), &text[..at]));
    assert!(made.ids.len() < 24 && tokens.starts_with(&made.ids));
    let said = generate(&t.model, None, &stopped, &mut |_, _| ()).expect_err("no tokenizer").to_string();
    assert!(said.contains("stop") && said.contains("a tokenizer"), "{said}");
}

fn reader<'a>(t: &'a Tiny) -> Reader<'a> {
    Reader { config: &t.model.config, tokenizer: Some(&t.tokenizer), max_tokens: 3, sampling: DRAWN, stop: &[] }
}

/// Requests know nothing of each other: sequences run alone, on kernels whose rows do not know each other either.
#[test]
fn a_requests_tokens_do_not_depend_on_the_others() {
    let t = tiny();
    let lines = [
        json!({"id": "a", "prompt": "Hello"}),
        json!({"id": "b", "ids": [3, 4, 5], "temperature": 0}),
        json!({"id": "c", "prompt": "Hello", "seed": 4}),
        json!({"id": "d", "messages": [{"role": "user", "content": "a tile"}], "reasoning_effort": "low"}),
    ];
    let jobs: Vec<Job> = lines.iter().map(|l| reader(t).line(&l.to_string(), json!(0)).expect("reads")).collect();
    let row = |j: &Job| batch::run(&t.model, Some(&t.tokenizer), j).expect("runs").0;
    let forward: Vec<Value> = jobs.iter().map(row).collect();
    let mut backward: Vec<Value> = jobs.iter().rev().map(row).collect();
    backward.reverse();
    assert_eq!(forward, backward);
    assert_ne!(forward[0]["ids"], forward[2]["ids"], "another seed draws others");
    assert_eq!(forward[3]["usage"]["prompt_tokens"], json!(jobs[3].request.ids.len()));
    assert!(forward[3]["message"]["reasoning_content"].is_string() && forward[0].get("message").is_none());
}

#[test]
fn lines_that_cannot_be_served_say_why() {
    let t = tiny();
    let most = "[".to_string() + &"5,".repeat(4096) + "5]";
    for (line, wants) in [
        ("{", &["line", "JSON"][..]),
        ("7", &["line", "a JSON object", "7"]),
        ("{}", &["one of `ids`, `prompt` and `messages`", "none of them"]),
        (r#"{"ids": [1], "prompt": "x"}"#, &["ids and prompt"]),
        (r#"{"ids": []}"#, &["ids", "at least one token"]),
        (r#"{"prompt": ""}"#, &["prompt", "at least one token"]),
        (r#"{"prompt": 3}"#, &["prompt", "a text"]),
        (r#"{"ids": [1, -1]}"#, &["ids", "a list of token ids"]),
        (r#"{"ids": [1, 512]}"#, &["`vocab_size` 512", "got 512"]),
        (&format!(r#"{{"ids": {most}}}"#), &["`max_position_embeddings` 4096", "got 4097"]),
        (r#"{"ids": [1], "max_token": 3}"#, &["max_token", "max_tokens"]),
        (r#"{"ids": [1], "max_tokens": -3}"#, &["max_tokens", "whole number"]),
        (r#"{"ids": [1], "temperature": "hot"}"#, &["temperature", "a number"]),
        (r#"{"ids": [1], "top_p": 2}"#, &["--top-p", "at most 1"]),
        (r#"{"ids": [1], "stop": ""}"#, &["stop", "not empty"]),
        (r#"{"id": [], "ids": [1]}"#, &["id", "a text or a number"]),
        (r#"{"messages": [{"role": "robot", "content": "x"}]}"#, &["messages[0].role", "robot"]),
    ] {
        let said = reader(t).line(line, json!(0)).expect_err(line).to_string();
        for want in wants.iter().chain(&["expected", "next: "]) {
            assert!(said.contains(want), "{line}: no `{want}` in {said}");
        }
    }
    let without = Reader { tokenizer: None, ..reader(t) };
    for line in [r#"{"prompt": "x"}"#, r#"{"ids": [1], "stop": "x"}"#] {
        let said = without.line(line, json!(0)).expect_err(line).to_string();
        assert!(said.contains("tokenizer.json") && said.contains("give `ids`"), "{said}");
    }
}

#[test]
fn v41_finds_its_classes_in_the_tokenizer() {
    let dir = folder("v41");
    let device = kiln_runtime::open("cpu").expect("always there");
    let (model, t) = Model::load_with_tokenizer(dir.path(), &device).expect("loads");
    let t = t.expect("there is one");
    let r = Request { ids: t.encode("Hello there").expect("encodes"), max_tokens: 2, sampling: DRAWN, stop: vec![] };
    assert_eq!(generate(&model, Some(&t), &r, &mut |_, _| ()).expect("generates").ids.len(), 2);
    // Hello, hello and HELLO are one class; so are rows of the memory.
    let rows = |text: &str| model.engram_rows(&[t.encode(text).expect("encodes")[0]]).expect("runs");
    assert_eq!(rows("a"), rows("A"));
    assert_ne!(rows("a"), rows("b"));
    let file = dir.path().join("config.json");
    let config = std::fs::read_to_string(&file).expect("reads");
    let classes = config::read(dir.path()).expect("reads");
    let config::Family::V41(f) = &classes.family else { panic!("V4.1") };
    let n = f.engram.compressed_vocab_size;
    let wrong =
        config.replace(&format!("\"engram_compressed_vocab_size\": {n}"), "\"engram_compressed_vocab_size\": 7");
    std::fs::write(&file, wrong).expect("writes");
    let said = Model::load_with_tokenizer(dir.path(), &device).expect_err("another number").to_string();
    assert!(said.contains("tokenizer.json") && said.contains(&format!("got {n}")), "{said}");
    std::fs::remove_file(dir.path().join("tokenizer.json")).expect("removes");
    let said = Model::load_with_tokenizer(dir.path(), &device).expect_err("none").to_string();
    assert!(said.contains("tokenizer.json") && said.contains("next: "), "{said}");
}

#[test]
fn chat_prompts_of_the_tiny_model_are_ids() {
    let t = tokenizer();
    let c = V4.read(&json!({"messages": [{"role": "user", "content": "Hello"}], "thinking": {"type": "disabled"}}));
    let prompt = V4.render(&c.expect("reads"));
    let ids = t.encode_prompt(&prompt).expect("encodes");
    assert_eq!(ids[0], 0);
    assert_eq!(t.decode(&ids), "<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>");
}

/// Threads that share a model share its stream and the workspaces of its plans, and must not see each other's numbers.
#[test]
fn a_model_serves_several_threads() {
    let t = tiny();
    let run = |seed: u64| {
        let r = request("Tiles cover roofs", 6, Sampling { seed, ..DRAWN });
        generate(&t.model, None, &r, &mut |_, _| ()).expect("generates").ids
    };
    let alone: Vec<Vec<usize>> = (0..4).map(run).collect();
    let together: Vec<Vec<usize>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|seed| s.spawn(move || run(seed))).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    assert_eq!(alone, together);
}

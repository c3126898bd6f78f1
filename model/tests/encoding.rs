//! Chat requests against the prompts and the readings of outputs that the vendor's package gives (`tests/data/encoding.json`), and
//! requests that must be refused. `KILN_ORACLE=DIR` adds `DIR/encoding.json`.

use kiln_model::text::chat::{ChatEncoding, Kind, Parsed, Parser, V4, V41};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn files() -> Vec<PathBuf> {
    let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/encoding.json")];
    let other = std::env::var_os("KILN_ORACLE").map(|dir| Path::new(&dir).join("encoding.json"));
    files.extend(other.filter(|f| f.exists()));
    files
}

fn rows(list: &str) -> Vec<Value> {
    let read = |file: PathBuf| -> Vec<Value> {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let json: Value = serde_json::from_str(&text).expect("JSON");
        json[list].as_array().expect("a list").clone()
    };
    files().into_iter().flat_map(read).collect()
}

fn encoding(row: &Value) -> &'static dyn ChatEncoding {
    match row["encoding"].as_str() {
        Some("v4") => &V4,
        Some("v41") => &V41,
        other => panic!("{other:?} is no encoding"),
    }
}

#[test]
fn prompts_are_the_expected_ones() {
    let rows = rows("prompts");
    for row in &rows {
        let (name, e) = (format!("{} {}", row["name"], row["encoding"]), encoding(row));
        let read = e.read(&row["request"]);
        if !row["error"].is_null() {
            assert!(read.is_err(), "{name}: must be refused: {}", row["error"]);
            continue;
        }
        let prompt = e.render(&read.unwrap_or_else(|e| panic!("{name}: {e}")));
        assert_eq!(prompt.text, row["prompt"].as_str().expect("a prompt"), "{name}");
        // Counted in characters there.
        let chars = |at: usize| prompt.text[..at].chars().count();
        let got: Vec<Value> = prompt.special.iter().map(|r| json!([chars(r.start), chars(r.end)])).collect();
        assert_eq!(json!(got), row["special_char_ranges"], "{name}");
    }
    assert!(rows.len() >= 46);
}

/// A reader of the turn after a one-word question.
fn parser(row: &Value) -> Parser {
    let parameters = json!({"type": "object"});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let thinking = if row["thinking"] == true { "enabled" } else { "disabled" };
    let request = json!({"messages": [{"role": "user", "content": "x"}], "tools": [tool("get_weather"), tool("calc")],
        "thinking": {"type": thinking}});
    let e = encoding(row);
    e.parser(&e.read(&request).expect("reads"))
}

#[test]
fn outputs_are_read_the_same_in_any_pieces() {
    let rows = rows("outputs");
    for row in &rows {
        let name = format!("{} {}", row["name"], row["encoding"]);
        let text: Vec<char> = row["output"].as_str().expect("a text").chars().collect();
        let want = &row["parsed"];
        let calls: Vec<Value> =
            want["tool_calls"].as_array().expect("a list").iter().map(|c| json!([c["name"], c["arguments"]])).collect();
        for size in [text.len().max(1), 7, 3, 2, 1] {
            let mut p = parser(row);
            text.chunks(size).for_each(|c| p.push(&c.iter().collect::<String>(), Kind::Text));
            let reason = if p.said().calls.is_empty() { "stop" } else { "tool_calls" };
            let Parsed { reasoning, content, calls: got } = p.finish();
            assert_eq!(reasoning, want["reasoning"].as_str().expect("a text"), "{name} by {size}");
            assert_eq!(content, want["content"].as_str().expect("a text"), "{name} by {size}");
            let got: Vec<Value> = got.into_iter().map(|c| json!([c.name, c.arguments])).collect();
            assert_eq!((&got, reason), (&calls, want["finish_reason"].as_str().expect("a text")), "{name} by {size}");
        }
    }
    assert!(rows.len() >= 14);
}

#[test]
fn requests_without_sense_are_refused_with_their_place() {
    let user = json!({"role": "user", "content": "x"});
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let calls = |list: Value| json!({"role": "assistant", "tool_calls": list});
    let result = |id: &str| json!({"role": "tool", "content": "y", "tool_call_id": id});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let ask = |more: Value| {
        let mut r = json!({"messages": [user]});
        r.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        r
    };
    for (request, wants) in [
        (json!([]), &["request", "an object"][..]),
        (json!({}), &["messages", "a value"]),
        (json!({"messages": []}), &["at least one message"]),
        (json!({"messages": "x"}), &["messages", "a list", "\"x\""]),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), &["messages[0].role", "latest_reminder", "robot"]),
        (json!({"messages": [{"content": "x"}]}), &["messages[0].role", "nothing"]),
        (json!({"messages": [{"role": "user"}]}), &["messages[0].content"]),
        (json!({"messages": [{"role": "user", "content": 7}]}), &["messages[0].content", "7"]),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "sound"}]}]}),
            &["messages[0].content[0].type", "sound"],
        ),
        (json!({"messages": [user, {"role": "assistant"}]}), &["messages[1]", "`content` or `tool_calls`"]),
        (json!({"messages": [user, calls(json!([]))]}), &["messages[1].tool_calls", "at least one call"]),
        (json!({"messages": [user, calls(json!([call("a")]))]}), &["result of call a", "the end"]),
        (json!({"messages": [user, calls(json!([call("a"), call("a")]))]}), &["tool_calls[1].id", "of its own"]),
        (json!({"messages": [user, calls(json!([call("a")])), user]}), &["messages[2].role", "a has none"]),
        (json!({"messages": [user, calls(json!([call("a")])), result("b")]}), &["messages[2].tool_call_id", "\"b\""]),
        (json!({"messages": [user, result("a")]}), &["messages[1].tool_call_id", "right after"]),
        (
            json!({"messages": [{"role": "assistant", "content": "a", "prefix": true}, user]}),
            &["messages[0].prefix", "last message"],
        ),
        (
            json!({"messages": [user, {"role": "assistant", "content": "a", "prefix": true}], "tools": [tool("f")]}),
            &["no tools"],
        ),
        (ask(json!({"tools": [tool("a b")]})), &["tools[0].function.name", "a b"]),
        (ask(json!({"tools": [tool("f"), tool("f")]})), &["tools[1].function.name", "no tool before"]),
        (
            ask(json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]})),
            &["tools[0].function.parameters", "\"object\""],
        ),
        (ask(json!({"tools": [tool("f")], "tool_choice": "required"})), &["tool_choice", "thinking is on"]),
        (ask(json!({"tools": [tool("f")], "tool_choice": "always"})), &["tool_choice", "none, auto, required"]),
        (
            ask(json!({"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}})),
            &["tool_choice.function.name", "\"g\""],
        ),
        (ask(json!({"reasoning_effort": "huge"})), &["reasoning_effort", "ultra", "huge"]),
        (ask(json!({"thinking": {"type": "on"}})), &["thinking.type", "disabled"]),
        (ask(json!({"response_format": {"type": "json_object"}})), &["messages", "the word json"]),
        (ask(json!({"response_format": {"type": "xml"}})), &["response_format.type", "xml"]),
        (ask(json!({"temperature": 3})), &["temperature", "0 to 2", "3"]),
        (ask(json!({"top_p": 0})), &["top_p"]),
        (ask(json!({"n": 2})), &["n:", "1 to 1"]),
        (ask(json!({"stop": [""]})), &["stop[0]", "not empty"]),
        (ask(json!({"stop": vec!["a"; 17]})), &["stop", "at most 16"]),
        (ask(json!({"stream_options": {}})), &["stream_options", "`stream` true"]),
    ] {
        for e in [&V4 as &dyn ChatEncoding, &V41] {
            let said = e.read(&request).expect_err(&request.to_string()).to_string();
            for want in wants.iter().chain(&["expected", "got", "next: "]) {
                assert!(said.contains(want), "{request}: no `{want}` in {said}");
            }
        }
    }
}

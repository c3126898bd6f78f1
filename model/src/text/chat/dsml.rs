//! Tools in prompts: the instructions, the schemas, and the markup of calls, which both formats write with tags of their own.
//!
//! Also JSON as prompts have it: `", "` and `": "` between things, letters of all scripts as they are.

use super::request::{Tool, ToolCall};
use super::token::{DSML, THINK, THINK_END};
use crate::text::prompt::Prompt;
use serde_json::{Map, Value, json};

/// Names of tags, and what differs besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tags {
    /// Block of calls.
    pub calls: &'static str,
    /// One call.
    pub invoke: &'static str,
    /// One argument.
    pub parameter: &'static str,
    /// A call without arguments has an empty line between its tags.
    pub empty_line: bool,
    /// Small numbers have an exponent of two digits, as Python writes them.
    pub python_numbers: bool,
}

impl Tags {
    fn open(&self, p: &mut Prompt, name: &str) {
        p.plain("<").special(DSML).plain(name);
    }
    fn close(&self, p: &mut Prompt, name: &str) {
        p.plain("</").special(DSML).plain(name).plain(">");
    }

    /// Start of a block, which the prompt ends with if a call is demanded.
    pub fn start(&self, p: &mut Prompt) {
        p.plain("\n\n");
        self.open(p, self.calls);
        p.plain(">\n");
    }

    /// The block of some calls.
    pub fn calls(&self, p: &mut Prompt, calls: &[ToolCall]) {
        self.start(p);
        for call in calls {
            self.open(p, self.invoke);
            p.plain(&format!(" name=\"{}\">\n", call.name));
            let arguments = arguments(call);
            for (key, value) in &arguments {
                let (is_text, text) = match value {
                    Value::String(s) => (true, s.clone()),
                    other => (false, self.json(other)),
                };
                self.open(p, self.parameter);
                p.plain(&format!(" name=\"{key}\" string=\"{is_text}\">{text}"));
                self.close(p, self.parameter);
                p.plain("\n");
            }
            if arguments.is_empty() && self.empty_line {
                p.plain("\n");
            }
            self.close(p, self.invoke);
            p.plain("\n");
        }
        self.close(p, self.calls);
    }

    /// How to call the tools, and their schemas.
    pub fn instructions(&self, tools: &[Tool]) -> Prompt {
        let mut p = Prompt::default();
        p.plain("## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by writing a \"");
        self.open(&mut p, self.calls);
        p.plain(">\" block like the following:\n\n");
        self.open(&mut p, self.calls);
        p.plain(">\n");
        self.open(&mut p, self.invoke);
        p.plain(" name=\"$TOOL_NAME\">\n");
        self.open(&mut p, self.parameter);
        p.plain(" name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE");
        self.close(&mut p, self.parameter);
        p.plain("\n...\n");
        self.close(&mut p, self.invoke);
        p.plain("\n");
        self.open(&mut p, self.invoke);
        p.plain(" name=\"$TOOL_NAME2\">\n...\n");
        self.close(&mut p, self.invoke);
        p.plain("\n");
        self.close(&mut p, self.calls);
        p.plain("\n\nString parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\nIf thinking_mode is enabled (triggered by ");
        p.special(THINK).plain("), you MUST output your complete reasoning inside ");
        p.special(THINK).plain("...").special(THINK_END);
        p.plain(" BEFORE any tool calls or final response.\n\nOtherwise, output directly after ");
        p.special(THINK_END).plain(" with tool calls or final response.\n\n### Available Tool Schemas\n\n");
        for tool in tools {
            let schema = json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
            p.plain(&self.json(&schema)).plain("\n");
        }
        p.plain("\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n");
        p
    }

    /// A value as prompts have it.
    pub fn json(&self, value: &Value) -> String {
        let mut out = String::new();
        self.write(value, &mut out);
        out
    }

    fn write(&self, value: &Value, out: &mut String) {
        match value {
            Value::Array(list) => {
                out.push('[');
                for (i, x) in list.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { ", " });
                    self.write(x, out);
                }
                out.push(']');
            }
            Value::Object(map) => {
                out.push('{');
                for (i, (key, x)) in map.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { ", " });
                    out.push_str(&Value::from(key.as_str()).to_string());
                    out.push_str(": ");
                    self.write(x, out);
                }
                out.push('}');
            }
            Value::Number(n) if n.is_f64() && self.python_numbers => out.push_str(&python(&n.to_string())),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => out.push_str(&value.to_string()),
        }
    }
}

/// Arguments of a call by name; a text that is no object is one argument of its own.
fn arguments(call: &ToolCall) -> Map<String, Value> {
    let whole = || Map::from_iter([("arguments".to_string(), call.arguments.as_str().into())]);
    serde_json::from_str(&call.arguments).unwrap_or_else(|_| whole())
}

/// A decimal number with the exponent Python gives numbers below 1e-4: `0.00001` is `1e-05`.
fn python(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |d| ("-", d));
    if let Some((mantissa, power)) = digits.split_once("e-") {
        return format!("{sign}{mantissa}e-{power:0>2}");
    }
    let Some(fraction) = digits.strip_prefix("0.") else { return text.to_string() };
    let rest = fraction.trim_start_matches('0');
    let zeros = fraction.len() - rest.len();
    match rest.split_at_checked(1) {
        Some((first, more)) if zeros >= 4 => {
            let point = if more.is_empty() { "" } else { "." };
            format!("{sign}{first}{point}{more}e-{:02}", zeros + 1)
        }
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_have_two_digits_of_exponent() {
        for (x, want) in [
            (0.001, "0.001"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-0.0000125, "-1.25e-05"),
            (1e-7, "1e-07"),
            (1.5e-11, "1.5e-11"),
            (0.0, "0.0"),
            (100.5, "100.5"),
        ] {
            assert_eq!(python(&json!(x).to_string()), want);
        }
    }
}

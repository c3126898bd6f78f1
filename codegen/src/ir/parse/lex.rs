//! Cuts the text form into words, numbers and signs, with where they stand.

use super::ParseError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tok {
    Word(String),
    Number(String),
    Text(String),
    Value(u32),
    Buffer(String),
    View(String),
    Sign(&'static str),
    End,
}

impl std::fmt::Display for Tok {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tok::Word(s) | Tok::Number(s) => write!(f, "`{s}`"),
            Tok::Text(s) => write!(f, "{s:?}"),
            Tok::Value(n) => write!(f, "`%{n}`"),
            Tok::Buffer(n) => write!(f, "`@{n}`"),
            Tok::View(n) => write!(f, "`${n}`"),
            Tok::Sign(s) => write!(f, "`{s}`"),
            Tok::End => f.write_str("the end of the text"),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    pub tok: Tok,
    pub line: u32,
    pub column: u32,
}

const SIGNS: [&str; 22] = [
    "..=", "..", "->", "==", "<=", "{", "}", "(", ")", "[", "]", ",", ":", "=", "|", "<", "+", "-", "*", "/", "%", ".",
];

pub(super) fn lex(text: &str) -> Result<Vec<Token>, ParseError> {
    let mut out = vec![];
    for (n, line) in text.lines().enumerate() {
        let line_no = n as u32 + 1;
        let chars: Vec<char> = line.chars().collect();
        let mut i = 0;
        let word_end = |mut j: usize| {
            while j < chars.len() && (chars[j].is_alphanumeric() || chars[j] == '_') {
                j += 1;
                // A dot belongs to a name only between its parts: `x.1`, but not in `lo..hi`.
                if j + 1 < chars.len() && chars[j] == '.' && (chars[j + 1].is_alphanumeric() || chars[j + 1] == '_') {
                    j += 1;
                }
            }
            j
        };
        let digits_end = |mut j: usize| {
            while j < chars.len() && chars[j].is_ascii_alphanumeric() {
                j += 1;
            }
            j
        };
        let part = |a: usize, b: usize| chars[a..b].iter().collect::<String>();
        while i < chars.len() {
            let (c, next) = (chars[i], chars.get(i + 1).copied().unwrap_or(' '));
            let column = i as u32 + 1;
            let fail = |message: String| ParseError { line: line_no, column, message };
            let start = i;
            let tok = match c {
                ' ' | '\t' | '\r' => {
                    i += 1;
                    continue;
                }
                ';' => break,
                '/' if next == '/' => break,
                '"' => {
                    let mut s = String::new();
                    i += 1;
                    loop {
                        match chars.get(i) {
                            None => return Err(fail("expected `\"` before the end of the line".into())),
                            Some('"') => break,
                            Some('\\') => {
                                i += 1;
                                match chars.get(i) {
                                    Some('n') => s.push('\n'),
                                    Some('t') => s.push('\t'),
                                    Some(&c) => s.push(c),
                                    None => {}
                                }
                            }
                            Some(&c) => s.push(c),
                        }
                        i += 1;
                    }
                    i += 1;
                    Tok::Text(s)
                }
                '%' if next.is_ascii_digit() => {
                    i = digits_end(i + 1);
                    let number = part(start + 1, i);
                    Tok::Value(number.parse().map_err(|_| fail(format!("expected a value number, found `%{number}`")))?)
                }
                '@' | '$' => {
                    i = word_end(i + 1);
                    let name = part(start + 1, i);
                    if name.is_empty() {
                        return Err(fail(format!("expected a name after `{c}`")));
                    }
                    if c == '@' { Tok::Buffer(name) } else { Tok::View(name) }
                }
                _ if c.is_ascii_digit() => {
                    i = digits_end(i);
                    if i + 1 < chars.len() && chars[i] == '.' && chars[i + 1].is_ascii_digit() {
                        i = digits_end(i + 1);
                    }
                    if i < chars.len() && matches!(chars[i - 1], 'e' | 'E') && matches!(chars[i], '-' | '+') {
                        i = digits_end(i + 1);
                    }
                    Tok::Number(part(start, i))
                }
                _ if c.is_alphabetic() || c == '_' => {
                    i = word_end(i);
                    Tok::Word(part(start, i))
                }
                _ => {
                    let rest: String = part(i, (i + 3).min(chars.len()));
                    match SIGNS.iter().find(|s| rest.starts_with(**s)) {
                        Some(s) => {
                            i += s.len();
                            Tok::Sign(s)
                        }
                        None => return Err(fail(format!("expected IR text, found `{c}`"))),
                    }
                }
            };
            out.push(Token { tok, line: line_no, column });
        }
    }
    let last = text.lines().count() as u32;
    out.push(Token { tok: Tok::End, line: last.max(1), column: 1 });
    Ok(out)
}

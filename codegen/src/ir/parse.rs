//! Reads the text form that `print` writes.
//!
//! It restores structure exactly (no folding), so that printing the result gives the same text. It checks only what it
//! must to build a kernel: spelling and that names exist. Positions of the result are positions in the text. Comments run
//! from `//` or `;` to the end of the line.

mod sched;

use super::print::SPACES;
use super::*;
use std::collections::HashMap;
use std::sync::Arc;

/// A text that is not a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// 1-based line.
    pub line: u32,
    /// 1-based column.
    pub column: u32,
    /// What was expected and what was found.
    pub message: String,
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}
impl std::error::Error for ParseError {}

/// Reads a kernel; positions name the file `<text>`.
///
/// # Errors
/// The first place that does not fit the grammar, or names something unknown.
pub fn kernel(text: &str) -> Result<Kernel, ParseError> {
    kernel_in("<text>", text)
}

/// Reads a kernel from the text of `file`, which positions then name.
///
/// # Errors
/// As [`kernel`].
pub fn kernel_in(file: &str, text: &str) -> Result<Kernel, ParseError> {
    let mut p = Parser::new(file, lex(text)?);
    p.kernel()?;
    Ok(p.k)
}

#[derive(Clone, Debug, PartialEq)]
enum Tok {
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
struct Token {
    tok: Tok,
    line: u32,
    column: u32,
}

const SIGNS: [&str; 22] = [
    "..=", "..", "->", "==", "<=", "{", "}", "(", ")", "[", "]", ",", ":", "=", "|", "<", "+", "-", "*", "/", "%", ".",
];

fn lex(text: &str) -> Result<Vec<Token>, ParseError> {
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

type Parsed<T> = Result<T, ParseError>;

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    k: Kernel,
    file: Arc<str>,
    span_ids: HashMap<(u32, u32), SpanId>,
    syms: HashMap<String, SymId>,
    vars: HashMap<String, IxVarId>,
    params: HashMap<String, ParamId>,
    buffers: HashMap<String, BufferId>,
    views: HashMap<String, ViewId>,
    values: HashMap<u32, ValueId>,
    stack: Vec<BlockId>,
}

/// The name without the suffix that made it unique in the text.
fn stem(name: &str) -> String {
    match name.rsplit_once('.') {
        Some((head, tail)) if !tail.is_empty() && tail.bytes().all(|b| b.is_ascii_digit()) => head.into(),
        _ => name.into(),
    }
}

impl Parser {
    fn new(file: &str, tokens: Vec<Token>) -> Self {
        let k = Builder::new("", Span::unknown()).kernel;
        Parser {
            tokens,
            at: 0,
            k: Kernel { spans: vec![], ..k },
            file: file.into(),
            span_ids: HashMap::new(),
            syms: HashMap::new(),
            vars: HashMap::new(),
            params: HashMap::new(),
            buffers: HashMap::new(),
            views: HashMap::new(),
            values: HashMap::new(),
            stack: vec![BlockId(0)],
        }
    }

    // --- tokens ---

    fn peek(&self) -> &Tok {
        &self.tokens[self.at].tok
    }
    fn take(&mut self) -> Tok {
        let t = self.tokens[self.at].tok.clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        t
    }
    fn fail<T>(&self, message: impl Into<String>) -> Parsed<T> {
        let t = &self.tokens[self.at];
        Err(ParseError { line: t.line, column: t.column, message: message.into() })
    }
    fn expected<T>(&self, what: &str) -> Parsed<T> {
        self.fail(format!("expected {what}, found {}", self.peek()))
    }
    fn span(&mut self) -> SpanId {
        let t = &self.tokens[self.at];
        let (line, column) = (t.line, t.column);
        let next = SpanId(self.k.spans.len() as u32);
        let id = *self.span_ids.entry((line, column)).or_insert(next);
        if id == next {
            self.k.spans.push(Span { file: self.file.clone(), line, column, frames: vec![], label: None });
        }
        id
    }
    fn is(&self, sign: &str) -> bool {
        matches!(self.peek(), Tok::Sign(s) if *s == sign)
    }
    fn eat(&mut self, sign: &str) -> bool {
        let yes = self.is(sign);
        if yes {
            self.take();
        }
        yes
    }
    fn sign(&mut self, sign: &str) -> Parsed<()> {
        if self.eat(sign) { Ok(()) } else { self.expected(&format!("`{sign}`")) }
    }
    fn eat_word(&mut self, word: &str) -> bool {
        let yes = matches!(self.peek(), Tok::Word(w) if w == word);
        if yes {
            self.take();
        }
        yes
    }
    fn word(&mut self, word: &str) -> Parsed<()> {
        if self.eat_word(word) { Ok(()) } else { self.expected(&format!("`{word}`")) }
    }
    fn name(&mut self, what: &str) -> Parsed<String> {
        match self.peek().clone() {
            Tok::Word(w) => {
                self.take();
                Ok(w)
            }
            _ => self.expected(what),
        }
    }
    fn text(&mut self) -> Parsed<String> {
        match self.peek().clone() {
            Tok::Text(s) => {
                self.take();
                Ok(s)
            }
            _ => self.expected("a quoted text"),
        }
    }
    fn int(&mut self) -> Parsed<i64> {
        let negative = self.eat("-");
        match self.peek().clone() {
            Tok::Number(n) => match format!("{}{n}", if negative { "-" } else { "" }).parse() {
                Ok(v) => {
                    self.take();
                    Ok(v)
                }
                Err(_) => self.expected("an integer"),
            },
            _ => self.expected("an integer"),
        }
    }
    fn count(&mut self) -> Parsed<usize> {
        match self.peek().clone() {
            Tok::Number(n) => match n.parse() {
                Ok(v) => {
                    self.take();
                    Ok(v)
                }
                Err(_) => self.expected("a number"),
            },
            _ => self.expected("a number"),
        }
    }
    fn counts(&mut self) -> Parsed<Vec<usize>> {
        self.sign("[")?;
        let mut out = vec![];
        while !self.eat("]") {
            out.push(self.count()?);
            if !self.is("]") {
                self.sign(",")?;
            }
        }
        Ok(out)
    }
    fn dtype(&mut self) -> Parsed<DType> {
        if let Tok::Word(w) = self.peek()
            && let Some(d) = DType::parse(w)
        {
            self.take();
            return Ok(d);
        }
        self.expected("a dtype")
    }

    // --- header ---

    fn kernel(&mut self) -> Parsed<()> {
        self.word("kernel")?;
        self.k.span = self.span();
        self.k.name = self.name("the kernel's name")?;
        self.k.stage = if self.eat_word("plain") {
            Stage::Plain
        } else if self.eat_word("scheduled") {
            Stage::Scheduled
        } else {
            return self.expected("`plain` or `scheduled`");
        };
        self.sign("{")?;
        while !self.is("}") {
            self.item()?;
        }
        self.sign("}")?;
        if *self.peek() != Tok::End { self.expected("the end of the text") } else { Ok(()) }
    }

    fn item(&mut self) -> Parsed<()> {
        let span = self.span();
        let Tok::Word(word) = self.peek().clone() else { return self.expected("an item of the kernel") };
        match word.as_str() {
            "dtype" => {
                self.take();
                let n = self.name("a type parameter")?;
                self.sign("=")?;
                let d = self.dtype()?;
                self.k.dtypes.push((n, d));
            }
            "fixed" => {
                self.take();
                let n = self.name("a dimension")?;
                self.sign("=")?;
                let c = self.count()?;
                self.k.fixed_dims.push((n, c));
            }
            "sym" => {
                self.take();
                let n = self.name("a symbol")?;
                self.sign("=")?;
                let kind = if self.eat_word("dim") {
                    SymKind::Dim
                } else {
                    self.word("stride")?;
                    self.sign("(")?;
                    let param = self.count()? as u32;
                    self.sign(",")?;
                    let axis = self.count()? as u32;
                    self.sign(")")?;
                    SymKind::Stride { param, axis }
                };
                let min = self.int()?;
                self.sign("..=")?;
                let max = self.int()?;
                self.word("multiple")?;
                let multiple_of = self.int()?;
                self.k.syms.push(Sym { name: stem(&n), kind, multiple_of, min, max });
                self.syms.insert(n, SymId(self.k.syms.len() as u32 - 1));
            }
            "param" => {
                self.take();
                let n = self.name("a parameter")?;
                self.sign("=")?;
                let kind = if self.eat_word("absent") {
                    ParamKind::Absent
                } else if self.eat_word("scalar") {
                    let dtype = self.dtype()?;
                    let value = self.new_value(dtype, span)?;
                    ParamKind::Scalar { dtype, value }
                } else {
                    let access = match self.name("`in`, `out`, `inout`, `scalar` or `absent`")?.as_str() {
                        "in" => Access::In,
                        "out" => Access::Out,
                        "inout" => Access::InOut,
                        _ => {
                            self.at -= 1;
                            return self.expected("`in`, `out`, `inout`, `scalar` or `absent`");
                        }
                    };
                    let dtype = self.dtype()?;
                    let extents = self.indices()?;
                    self.word("strides")?;
                    let strides = self.indices()?;
                    self.word("align")?;
                    let align_bytes = self.count()?;
                    let tma = self.eat_word("tma");
                    ParamKind::Tensor { dtype, access, extents, strides, align_bytes, tma }
                };
                self.k.params.push(Param { name: stem(&n), kind, span });
                self.params.insert(n, ParamId(self.k.params.len() as u32 - 1));
            }
            "grid" => {
                self.take();
                self.sign("(")?;
                let zero = self.k.ix_const_id(0);
                while !self.eat(")") {
                    let axis = self.k.grid.len() as u8;
                    let def = self.var_name()?;
                    self.word("in")?;
                    let e = self.index()?;
                    self.k.grid.push(e);
                    let v = self.new_var(def, IxVarKind::Block(axis), Some(zero), Some((e, -1)))?;
                    self.k.block_ids.push(v);
                    if !self.is(")") {
                        self.sign(",")?;
                    }
                }
            }
            "raster" => {
                self.take();
                self.word("panels")?;
                self.k.raster = Some(self.count()?);
            }
            "warps" => {
                self.take();
                self.k.warps = self.count()?;
            }
            "require" => {
                self.take();
                let text = self.text()?;
                self.sign(":")?;
                let left = self.index()?;
                let relation = if self.eat("==") {
                    Relation::Eq
                } else if self.eat("<=") {
                    Relation::Le
                } else if self.eat("<") {
                    Relation::Lt
                } else {
                    return self.expected("`==`, `<=` or `<`");
                };
                let right = self.index()?;
                self.k.requires.push(Require { text, left, relation, right });
            }
            "deterministic" => {
                self.take();
                self.k.properties.deterministic = true;
            }
            "cooperative" => {
                self.take();
                self.k.properties.launch.cooperative = true;
            }
            "pdl" => {
                self.take();
                self.k.properties.launch.dependent = true;
            }
            "batch_invariant" => {
                self.take();
                let d = self.name("a dimension")?;
                self.k.properties.batch_invariant.push(d);
            }
            "shared_bytes" => {
                self.take();
                self.k.shared_bytes = self.count()?;
            }
            "body" => {
                self.take();
                self.braces(BlockId(0))?;
            }
            "cluster" | "map" | "role" | "ring" => self.table_line(&word)?,
            "buffer" => self.buffer_line()?,
            _ => return self.expected("an item of the kernel"),
        }
        Ok(())
    }

    // --- index expressions ---

    fn indices(&mut self) -> Parsed<Vec<IxId>> {
        self.sign("[")?;
        let mut out = vec![];
        while !self.eat("]") {
            out.push(self.index()?);
            if !self.is("]") {
                self.sign(",")?;
            }
        }
        Ok(out)
    }

    fn index(&mut self) -> Parsed<IxId> {
        let mut a = self.product()?;
        loop {
            if self.eat("+") {
                let b = self.product()?;
                a = self.k.intern(IxExpr::Add(a, b));
            } else if self.eat("-") {
                let b = self.product()?;
                a = self.k.intern(IxExpr::Sub(a, b));
            } else {
                return Ok(a);
            }
        }
    }

    fn product(&mut self) -> Parsed<IxId> {
        let mut a = self.operand()?;
        loop {
            if self.eat("*") {
                let b = self.operand()?;
                a = self.k.intern(IxExpr::Mul(a, b));
            } else if self.eat("/") {
                let b = self.operand()?;
                a = self.k.intern(IxExpr::Div(a, b));
            } else if self.eat("%") {
                let b = self.operand()?;
                a = self.k.intern(IxExpr::Mod(a, b));
            } else {
                return Ok(a);
            }
        }
    }

    fn operand(&mut self) -> Parsed<IxId> {
        match self.peek().clone() {
            Tok::Number(_) => {
                let c = self.int()?;
                Ok(self.k.ix_const_id(c))
            }
            Tok::Sign("-") => {
                let c = self.int()?;
                Ok(self.k.ix_const_id(c))
            }
            Tok::Sign("(") => {
                self.take();
                let e = self.index()?;
                self.sign(")")?;
                Ok(e)
            }
            Tok::Word(w) if w == "min" || w == "max" => {
                self.take();
                self.sign("(")?;
                let a = self.index()?;
                self.sign(",")?;
                let b = self.index()?;
                self.sign(")")?;
                Ok(self.k.intern(if w == "min" { IxExpr::Min(a, b) } else { IxExpr::Max(a, b) }))
            }
            Tok::Word(w) if w == "data" => {
                self.take();
                self.sign("(")?;
                let v = self.value()?;
                self.sign(")")?;
                Ok(self.k.intern(IxExpr::Data(v)))
            }
            Tok::Word(w) => {
                let e = match (self.vars.get(&w), self.syms.get(&w)) {
                    (Some(&v), _) => IxExpr::Var(v),
                    (None, Some(&s)) => IxExpr::Sym(s),
                    (None, None) => return self.fail(format!("nothing named `{w}` is visible here")),
                };
                self.take();
                Ok(self.k.intern(e))
            }
            _ => self.expected("an index"),
        }
    }

    // --- names ---

    fn value(&mut self) -> Parsed<ValueId> {
        match *self.peek() {
            Tok::Value(n) => match self.values.get(&n) {
                Some(&v) => {
                    self.take();
                    Ok(v)
                }
                None => self.fail(format!("value `%{n}` is not defined above")),
            },
            _ => self.expected("a value"),
        }
    }
    /// Reads `%n` as a definition.
    fn new_value(&mut self, dtype: DType, span: SpanId) -> Parsed<ValueId> {
        match *self.peek() {
            Tok::Value(n) => {
                self.take();
                Ok(self.make_value(n, dtype, span))
            }
            _ => self.expected("a value"),
        }
    }
    fn make_value(&mut self, n: u32, dtype: DType, span: SpanId) -> ValueId {
        self.k.values.push(Value { dtype, def: None, span });
        let v = ValueId(self.k.values.len() as u32 - 1);
        self.values.insert(n, v);
        v
    }
    fn buffer(&mut self) -> Parsed<BufferId> {
        match self.peek().clone() {
            Tok::Buffer(n) => match self.buffers.get(&n) {
                Some(&b) => {
                    self.take();
                    Ok(b)
                }
                None => self.fail(format!("buffer `@{n}` is not declared above")),
            },
            _ => self.expected("a buffer"),
        }
    }
    fn view(&mut self) -> Parsed<ViewId> {
        match self.peek().clone() {
            Tok::View(n) => match self.views.get(&n) {
                Some(&v) => {
                    self.take();
                    Ok(v)
                }
                None => self.fail(format!("view `${n}` is not declared above")),
            },
            _ => self.expected("a view"),
        }
    }
    /// A variable's name and, in brackets, bounds that are not the usual ones.
    #[allow(clippy::type_complexity, reason = "name and optional bounds, used in this file only")]
    fn var_name(&mut self) -> Parsed<(String, Option<(Option<IxId>, Option<IxId>)>, SpanId)> {
        let span = self.span();
        let name = self.name("an index name")?;
        if !self.eat("[") {
            return Ok((name, None, span));
        }
        let lo = if self.eat_word("_") { None } else { Some(self.index()?) };
        self.sign(",")?;
        let hi = if self.eat_word("_") { None } else { Some(self.index()?) };
        self.sign("]")?;
        Ok((name, Some((lo, hi)), span))
    }
    #[allow(clippy::type_complexity, reason = "name and optional bounds, used in this file only")]
    fn new_var(
        &mut self,
        (name, bounds, span): (String, Option<(Option<IxId>, Option<IxId>)>, SpanId),
        kind: IxVarKind,
        lo: Option<IxId>,
        hi: Option<(IxId, i64)>,
    ) -> Parsed<IxVarId> {
        let (lo, hi) = match bounds {
            Some(b) => b,
            None => {
                let hi = hi.map(|(e, d)| {
                    let d = self.k.ix_const_id(d);
                    self.k.ix_add(e, d)
                });
                (lo, hi)
            }
        };
        self.k.ix_vars.push(IxVar { name: stem(&name), kind, lo, hi, span });
        let v = IxVarId(self.k.ix_vars.len() as u32 - 1);
        self.vars.insert(name, v);
        Ok(v)
    }

    fn new_buffer(&mut self, name: String, buffer: Buffer) -> BufferId {
        self.k.buffers.push(buffer);
        let b = BufferId(self.k.buffers.len() as u32 - 1);
        self.buffers.insert(name, b);
        b
    }

    fn buffer_type(&mut self, name: &str, span: SpanId) -> Parsed<Buffer> {
        let Tok::Word(w) = self.peek().clone() else { return self.expected("a memory space") };
        let Some(&(space, _)) = SPACES.iter().find(|s| s.1 == w) else { return self.expected("a memory space") };
        self.take();
        let index = self.eat_word("index");
        let dtype = self.dtype()?;
        let extents = self.counts()?;
        let distribution = self.distribution()?;
        let memory = if self.eat_word("memory") {
            self.sign("(")?;
            self.word("strides")?;
            let strides = self.counts()?;
            let swizzle = if self.eat_word("swizzle") {
                Some((self.count()? as u32, self.count()? as u32, self.count()? as u32))
            } else {
                None
            };
            let panel = if self.eat_word("panel") { Some(self.count()?) } else { None };
            self.word("offset")?;
            let offset_bytes = self.count()?;
            self.sign(")")?;
            Some(MemoryLayout { strides, swizzle, panel, offset_bytes })
        } else {
            None
        };
        let role = if self.eat_word("role") { Some(RoleId(self.count()? as u32)) } else { None };
        Ok(Buffer { name: stem(name), dtype, index, extents, space, distribution, memory, role, span })
    }

    fn buffer_line(&mut self) -> Parsed<()> {
        self.word("buffer")?;
        let span = self.span();
        let Tok::Buffer(name) = self.peek().clone() else { return self.expected("a buffer") };
        self.take();
        self.sign(":")?;
        let b = self.buffer_type(&name, span)?;
        self.new_buffer(name, b);
        Ok(())
    }

    fn distribution(&mut self) -> Parsed<Option<Distribution>> {
        if !self.eat_word("spread_over") {
            return Ok(None);
        }
        self.sign("(")?;
        self.word("axis")?;
        let split_axis = self.count()?;
        self.word("vec")?;
        let vec = self.count()?;
        self.word("lanes")?;
        let lanes = self.count()?;
        self.word("threads")?;
        let threads = self.count()?;
        let mut fragment = None;
        if self.eat_word("warps") {
            let warps = [self.count()?, self.count()?];
            self.word("atoms")?;
            let atoms = [self.count()?, self.count()?];
            fragment = Some(Fragment { warps, atoms, interleaved: self.eat_word("interleaved") });
        }
        self.sign(")")?;
        Ok(Some(Distribution { split_axis, vec, lanes, threads, fragment }))
    }

    fn order(&mut self) -> Parsed<Option<Order>> {
        if !self.eat_word("order") {
            return Ok(None);
        }
        self.sign("(")?;
        self.word("lanes")?;
        let lanes = self.count()?;
        self.word("per_lane")?;
        let per_lane = self.count()?;
        self.sign(")")?;
        Ok(Some(Order { lanes, per_lane, tree: Tree::AdjacentPairs }))
    }

    fn view_line(&mut self) -> Parsed<()> {
        let span = self.span();
        self.word("view")?;
        let Tok::View(name) = self.peek().clone() else { return self.expected("a view") };
        self.take();
        self.sign("=")?;
        let base = match self.peek().clone() {
            Tok::Buffer(_) => Base::Buffer(self.buffer()?),
            Tok::Word(w) => match self.params.get(&w) {
                Some(&p) => {
                    self.take();
                    Base::Param(p)
                }
                None => return self.fail(format!("no parameter is named `{w}`")),
            },
            _ => return self.expected("a parameter or buffer"),
        };
        self.sign(":")?;
        let dtype = self.dtype()?;
        let extents = self.indices()?;
        self.word("strides")?;
        let strides = self.indices()?;
        let offset = if self.eat_word("offset") { self.index()? } else { self.k.ix_const_id(0) };
        let mut guards = vec![];
        if self.eat_word("guards") {
            self.sign("[")?;
            while !self.eat("]") {
                let i = self.index()?;
                self.sign("<")?;
                guards.push((i, self.index()?));
                if !self.is("]") {
                    self.sign(",")?;
                }
            }
        }
        let gather = if self.eat_word("gather") { Some(self.gather()?) } else { None };
        self.k.views.push(View { base, dtype, extents, strides, offset, guards, gather, span });
        self.views.insert(name, ViewId(self.k.views.len() as u32 - 1));
        Ok(())
    }

    fn gather(&mut self) -> Parsed<Gather> {
        let paged = self.eat_word("paged");
        if !paged && !self.eat_word("rows") {
            return self.expected("`paged` or `rows`");
        }
        self.sign("(")?;
        let table = self.view()?;
        self.sign(",")?;
        let gather = if paged {
            self.word("page")?;
            let page = self.count()?;
            self.sign(",")?;
            self.word("pages")?;
            let pages = self.index()?;
            self.sign(",")?;
            self.word("stride")?;
            Gather::Paged { table, page, pages, page_stride: self.index()? }
        } else {
            self.word("count")?;
            Gather::Rows { rows: table, count: self.index()? }
        };
        self.sign(")")?;
        Ok(gather)
    }

    // --- ops ---

    fn new_block(&mut self) -> BlockId {
        self.k.blocks.push(Block::default());
        BlockId(self.k.blocks.len() as u32 - 1)
    }

    fn braces(&mut self, block: BlockId) -> Parsed<()> {
        self.sign("{")?;
        self.stack.push(block);
        while !self.eat("}") {
            match self.peek() {
                Tok::Word(w) if w == "view" => self.view_line()?,
                Tok::Word(w) if w == "buffer" => self.buffer_line()?,
                _ => self.op()?,
            }
        }
        self.stack.pop();
        Ok(())
    }

    fn body(&mut self) -> Parsed<BlockId> {
        let b = self.new_block();
        self.braces(b)?;
        Ok(b)
    }

    /// Appends an op, making it the definition of the values it defines.
    fn push(&mut self, op: Op, span: SpanId) {
        let id = OpId(self.k.ops.len() as u32);
        for v in effects::uses(&op).defines {
            self.k.values[v.0 as usize].def = Some(id);
        }
        self.k.ops.push(OpNode { op, span });
        let block = self.stack[self.stack.len() - 1];
        self.k.blocks[block.0 as usize].ops.push(id);
    }

    fn place(&mut self) -> Parsed<(ViewId, Vec<IxId>)> {
        Ok((self.view()?, self.indices()?))
    }

    fn boxed(&mut self) -> Parsed<(Vec<IxVarId>, Vec<usize>)> {
        let zero = self.k.ix_const_id(0);
        self.sign("(")?;
        let (mut vars, mut extents) = (vec![], vec![]);
        while !self.eat(")") {
            let def = self.var_name()?;
            self.word("in")?;
            let n = self.count()?;
            let e = self.k.ix_const_id(n as i64);
            vars.push(self.new_var(def, IxVarKind::Element, Some(zero), Some((e, -1)))?);
            extents.push(n);
            if !self.is(")") {
                self.sign(",")?;
            }
        }
        Ok((vars, extents))
    }

    fn range_loop(&mut self, kind: IxVarKind) -> Parsed<(IxVarId, IxId, IxId)> {
        let def = self.var_name()?;
        self.word("in")?;
        let lo = self.index()?;
        self.sign("..")?;
        let hi = self.index()?;
        let var = self.new_var(def, kind, Some(lo), Some((hi, -1)))?;
        Ok((var, lo, hi))
    }

    fn op(&mut self) -> Parsed<()> {
        let span = self.span();
        if let Tok::Value(n) = *self.peek() {
            self.take();
            self.sign(":")?;
            let dtype = self.dtype()?;
            self.sign("=")?;
            return self.value_op(n, dtype, span);
        }
        let Tok::Word(word) = self.peek().clone() else { return self.expected("an op") };
        self.take();
        let op = match word.as_str() {
            "index" => return self.index_op(span),
            "var" => {
                let Tok::Buffer(name) = self.peek().clone() else { return self.expected("a variable") };
                let here = self.span();
                self.take();
                let var = if self.eat(":") {
                    let dtype = self.dtype()?;
                    let b = scalar_buffer(&name, dtype, false, here);
                    self.new_buffer(name, b)
                } else {
                    self.at -= 1;
                    self.buffer()?
                };
                self.sign("=")?;
                Op::VarNew { var, init: self.value()? }
            }
            "set" => {
                let var = self.buffer()?;
                self.sign("=")?;
                Op::VarSet { var, value: self.value()? }
            }
            "index_var" => {
                let Tok::Buffer(name) = self.peek().clone() else { return self.expected("a variable") };
                let here = self.span();
                self.take();
                let var = match self.buffers.get(&name) {
                    Some(&b) => b,
                    None => self.new_buffer(name.clone(), scalar_buffer(&name, DType::I64, true, here)),
                };
                self.sign("=")?;
                Op::IxVarNew { var, init: self.index()? }
            }
            "index_set" => {
                let var = self.buffer()?;
                self.sign("=")?;
                Op::IxVarSet { var, index: self.index()? }
            }
            "store" | "put" => {
                let (view, index) = self.place()?;
                self.sign("=")?;
                Op::Store { view, index, value: self.value()?, checked: word == "put" }
            }
            "atomic" => self.atomic(None)?,
            "alloc" => {
                let Tok::Buffer(name) = self.peek().clone() else { return self.expected("a buffer") };
                let here = self.span();
                self.take();
                let buffer = if self.eat(":") {
                    let b = self.buffer_type(&name, here)?;
                    self.new_buffer(name, b)
                } else {
                    self.at -= 1;
                    self.buffer()?
                };
                Op::Alloc { buffer }
            }
            "fill" => {
                let dst = self.view()?;
                self.sign("=")?;
                Op::Fill { dst, value: self.value()? }
            }
            "copy" => {
                let (view, start) = self.place()?;
                let src = Region { view, start };
                self.sign("->")?;
                let (view, start) = self.place()?;
                let dst = Region { view, start };
                self.word("extents")?;
                Op::Copy { src, dst, extents: self.counts()? }
            }
            "parallel" => {
                let (vars, extents) = self.boxed()?;
                let distribution = self.distribution()?;
                Op::Parallel { vars, extents, body: self.body()?, distribution }
            }
            "spread" => {
                let (var, lo, hi) = self.range_loop(IxVarKind::Element)?;
                Op::Spread { var, lo, hi, body: self.body()? }
            }
            "reduce" => {
                let op = self.one_of("a reduction", ReduceOp::parse)?;
                let src = self.view()?;
                self.word("axis")?;
                let axis = self.count()?;
                self.sign("->")?;
                let dst = self.buffer()?;
                Op::Reduce { op, src, dst, axis, order: self.order()? }
            }
            "scan" => self.scan(None)?,
            "for" => {
                let (var, lo, hi) = self.range_loop(IxVarKind::Loop)?;
                let stages = if self.eat_word("stages") { self.count()? } else { 1 };
                if self.eat_word("unroll") {
                    let n = self.count()?;
                    self.k.unroll.insert(var, n);
                }
                Op::For { var, lo, hi, body: self.body()?, stages }
            }
            "gemm" | "gemm.set" => {
                let a = self.view()?;
                self.sign(",")?;
                let b = self.view()?;
                self.sign("->")?;
                let acc = self.buffer()?;
                let scales = self.gemm_scales()?;
                Op::Gemm { a, b, acc, set: word == "gemm.set", scales }
            }
            "loop" => Op::Loop { body: self.body()? },
            "break" => Op::Break,
            "continue" => Op::Continue,
            "if" => {
                let cond = self.value()?;
                let then = self.body()?;
                let els = if self.eat_word("else") { self.body()? } else { self.new_block() };
                let mut results = vec![];
                if self.eat_word("yield") {
                    self.sign("(")?;
                    while !self.eat(")") {
                        results.push(self.if_result()?);
                        if !self.is(")") {
                            self.sign(",")?;
                        }
                    }
                }
                Op::If { cond, then, els, results }
            }
            "check" => Op::Check { cond: self.value()?, message: self.text()? },
            "grid_barrier" => Op::GridBarrier,
            "barrier" => Op::BlockBarrier { reason: self.text()? },
            _ => {
                self.at -= 1;
                match self.sched_op(span)? {
                    Some(op) => op,
                    None => return self.expected("an op"),
                }
            }
        };
        self.push(op, span);
        Ok(())
    }

    /// The scales of a product, if it has any.
    fn gemm_scales(&mut self) -> Parsed<Option<[GemmScale; 2]>> {
        if !self.eat_word("rows") {
            return Ok(None);
        }
        let row = self.gemm_scale()?;
        self.word("cols")?;
        Ok(Some([row, self.gemm_scale()?]))
    }

    fn gemm_scale(&mut self) -> Parsed<GemmScale> {
        let (vars, _) = self.boxed()?;
        let [var] = vars[..] else { return self.expected("one index variable") };
        let body = self.body()?;
        self.word("yield")?;
        Ok(GemmScale { var, body, value: self.value()? })
    }

    fn one_of<T>(&mut self, what: &str, parse: impl Fn(&str) -> Option<T>) -> Parsed<T> {
        if let Tok::Word(w) = self.peek()
            && let Some(x) = parse(w)
        {
            self.take();
            return Ok(x);
        }
        self.expected(what)
    }

    fn if_result(&mut self) -> Parsed<IfResult> {
        let span = self.span();
        if self.eat_word("index") {
            let def = self.var_name()?;
            self.sign("=")?;
            let then = self.index()?;
            self.sign("|")?;
            let els = self.index()?;
            let result = self.new_var(def, IxVarKind::Data, None, None)?;
            return Ok(IfResult::Index { result, then, els });
        }
        let Tok::Value(n) = *self.peek() else { return self.expected("`index` or a value") };
        self.take();
        self.sign(":")?;
        let dtype = self.dtype()?;
        self.sign("=")?;
        let then = self.value()?;
        self.sign("|")?;
        let els = self.value()?;
        Ok(IfResult::Value { result: self.make_value(n, dtype, span), then, els })
    }

    fn atomic(&mut self, result: Option<ValueId>) -> Parsed<Op> {
        let op = self.one_of("an atomic operation", AtomicOp::parse)?;
        let (view, index) = self.place()?;
        self.sign(",")?;
        Ok(Op::Atomic { result, op, view, index, value: self.value()? })
    }

    fn scan(&mut self, total: Option<ValueId>) -> Parsed<Op> {
        let op = self.one_of("a combining operation", ReduceOp::parse)?;
        let kind = self.one_of("a kind of scan", ScanKind::parse)?;
        let src = self.view()?;
        self.word("axis")?;
        let axis = self.count()?;
        self.sign("->")?;
        Ok(Op::Scan { op, kind, src, dst: self.buffer()?, axis, total })
    }

    fn index_op(&mut self, span: SpanId) -> Parsed<()> {
        let def = self.var_name()?;
        self.sign("=")?;
        let Tok::Word(word) = self.peek().clone() else { return self.expected("an op that gives an index") };
        let op = match word.as_str() {
            "clamp_index" => {
                self.take();
                let value = self.value()?;
                self.sign(",")?;
                let lo = self.index()?;
                self.sign(",")?;
                let hi = self.index()?;
                let var = self.new_var(def, IxVarKind::Data, Some(lo), Some((hi, 0)))?;
                Op::ClampIndex { var, value, lo, hi }
            }
            "index_get" => {
                self.take();
                let var = self.buffer()?;
                Op::IxVarGet { result: self.new_var(def, IxVarKind::Data, None, None)?, var }
            }
            "find_first" => {
                self.take();
                // The result is visible after the op only, but its name comes first in the text.
                let (vars, extents) = self.boxed()?;
                let ([var], [extent]) = (&vars[..], &extents[..]) else { return self.expected("one index variable") };
                let (var, extent) = (*var, *extent);
                let body = self.body()?;
                self.word("yield")?;
                let cond = self.value()?;
                let (zero, n) = (self.k.ix_const_id(0), self.k.ix_const_id(extent as i64));
                let result = self.new_var(def, IxVarKind::Data, Some(zero), Some((n, 0)))?;
                Op::FindFirst { var, extent, body, cond, result }
            }
            _ => return self.expected("an op that gives an index"),
        };
        self.push(op, span);
        Ok(())
    }

    fn value_op(&mut self, n: u32, dtype: DType, span: SpanId) -> Parsed<()> {
        let Tok::Word(word) = self.peek().clone() else { return self.expected("an op that gives a value") };
        self.take();
        // Operands are read before the result exists: a value cannot use itself.
        let op = match word.as_str() {
            "const" => {
                let value = self.literal()?;
                Op::Const { result: self.make_value(n, dtype, span), value }
            }
            "index_value" => {
                let index = self.index()?;
                Op::IndexValue { result: self.make_value(n, dtype, span), index }
            }
            "fma" | "select" => {
                let a = self.value()?;
                self.sign(",")?;
                let b = self.value()?;
                self.sign(",")?;
                let c = self.value()?;
                let result = self.make_value(n, dtype, span);
                if word == "fma" { Op::Fma { result, a, b, c } } else { Op::Select { result, cond: a, a: b, b: c } }
            }
            "compare" => {
                let op = self.one_of("a comparison", CmpOp::parse)?;
                let a = self.value()?;
                self.sign(",")?;
                let b = self.value()?;
                Op::Compare { result: self.make_value(n, dtype, span), op, a, b }
            }
            "compare_index" => {
                let op = self.one_of("a comparison", CmpOp::parse)?;
                let a = self.index()?;
                self.sign(",")?;
                let b = self.index()?;
                Op::CompareIndex { result: self.make_value(n, dtype, span), op, a, b }
            }
            "cast" => {
                let x = self.value()?;
                Op::Cast { result: self.make_value(n, dtype, span), x }
            }
            "bits" => {
                let x = self.value()?;
                Op::Bits { result: self.make_value(n, dtype, span), x }
            }
            "get" => {
                let var = self.buffer()?;
                Op::VarGet { result: self.make_value(n, dtype, span), var }
            }
            "load" => {
                let (view, index) = self.place()?;
                Op::Load { result: self.make_value(n, dtype, span), view, index }
            }
            "load_or" => {
                let (view, index) = self.place()?;
                self.word("else")?;
                let other = self.value()?;
                Op::LoadOr { result: self.make_value(n, dtype, span), view, index, other }
            }
            "atomic" => {
                let op = self.atomic(None)?;
                let r = self.make_value(n, dtype, span);
                match op {
                    Op::Atomic { op, view, index, value, .. } => Op::Atomic { result: Some(r), op, view, index, value },
                    other => other,
                }
            }
            "scan" => {
                let op = self.scan(None)?;
                let t = self.make_value(n, dtype, span);
                match op {
                    Op::Scan { op, kind, src, dst, axis, .. } => Op::Scan { op, kind, src, dst, axis, total: Some(t) },
                    other => other,
                }
            }
            "reduce_region" => {
                let op = self.one_of("a reduction", ReduceOp::parse)?;
                let (vars, extents) = self.boxed()?;
                let order = self.order()?;
                let body = self.body()?;
                self.word("yield")?;
                let value = self.value()?;
                Op::ReduceRegion { op, vars, extents, body, value, result: self.make_value(n, dtype, span), order }
            }
            _ => {
                if let Some(op) = UnaryOp::parse(&word) {
                    let x = self.value()?;
                    Op::Unary { result: self.make_value(n, dtype, span), op, x }
                } else if let Some(op) = BinaryOp::parse(&word) {
                    let a = self.value()?;
                    self.sign(",")?;
                    let b = self.value()?;
                    Op::Binary { result: self.make_value(n, dtype, span), op, a, b }
                } else {
                    self.at -= 1;
                    return self.expected("an op that gives a value");
                }
            }
        };
        self.push(op, span);
        Ok(())
    }

    fn literal(&mut self) -> Parsed<Literal> {
        let dtype = self.dtype()?;
        if dtype == DType::Bool {
            let yes = self.eat_word("true");
            if !yes {
                self.word("false")?;
            }
            return Ok(Literal::bool(yes));
        }
        let minus = if self.eat("-") { "-" } else { "" };
        let Tok::Number(n) = self.peek().clone() else { return self.expected("a number") };
        let mask = if dtype.bits() == 64 { u64::MAX } else { (1 << dtype.bits()) - 1 };
        let bits = match n.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None if dtype == DType::F32 => format!("{minus}{n}").parse::<f32>().ok().map(|x| x.to_bits() as u64),
            None if dtype.is_int() => format!("{minus}{n}").parse::<i64>().ok().map(|x| x as u64 & mask),
            None => None,
        };
        match bits.filter(|b| b & !mask == 0) {
            Some(bits) => {
                self.take();
                Ok(Literal { dtype, bits })
            }
            None => self.expected(&format!("a constant of type {dtype} (`0x..` for bits)")),
        }
    }
}

fn scalar_buffer(name: &str, dtype: DType, index: bool, span: SpanId) -> Buffer {
    Buffer {
        name: stem(name),
        dtype,
        index,
        extents: vec![],
        space: Space::Var,
        distribution: None,
        memory: None,
        role: None,
        span,
    }
}

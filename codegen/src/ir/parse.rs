//! Reads the text form that `print` writes.
//!
//! It restores structure exactly (no folding), so that printing the result gives the same text. It checks only what it
//! must to build a kernel: spelling and that names exist. Positions of the result are positions in the text. Comments run
//! from `//` or `;` to the end of the line.

mod index;
mod lex;
mod names;
mod ops;
mod sched;

use super::*;
use lex::{Tok, Token, lex};
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

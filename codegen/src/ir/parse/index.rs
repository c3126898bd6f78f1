//! Reads index expressions of the text form.

use super::{Parsed, Parser, Tok};
use crate::ir::*;

impl Parser {
    // --- index expressions ---

    pub(super) fn indices(&mut self) -> Parsed<Vec<IxId>> {
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

    pub(super) fn index(&mut self) -> Parsed<IxId> {
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

    pub(super) fn product(&mut self) -> Parsed<IxId> {
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

    pub(super) fn operand(&mut self) -> Parsed<IxId> {
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
}

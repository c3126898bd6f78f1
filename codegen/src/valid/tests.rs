//! Broken arenas that text cannot express; everything else is in `tests/filetests/valid`.

use super::check;
use crate::ir::{Builder, IxId, Literal, Op, Span, ValueId};

fn codes(b: Builder) -> Vec<&'static str> {
    let k = b.finish().expect("closed");
    check(&k).expect_err("refused").into_iter().map(|d| d.code).collect()
}

fn builder() -> Builder {
    let mut b = Builder::new("broken", Span::unknown());
    let one = b.ix_const(1);
    b.grid(&[one]);
    b
}

#[test]
fn ids_out_of_range() {
    let mut b = builder();
    b.push_value(crate::ir::DType::I32, |result| Op::IndexValue { result, index: IxId(99) });
    b.push(Op::Cast { result: ValueId(7), x: ValueId(8) });
    assert_eq!(codes(b), ["V0101", "V0101"]);
}

#[test]
fn a_value_defined_twice() {
    let mut b = builder();
    let v = b.constant(Literal::i32(1));
    b.push(Op::Const { result: v, value: Literal::i32(2) });
    assert_eq!(codes(b), ["V0103"]);
}

#[test]
fn a_block_with_two_parents() {
    let mut b = builder();
    let body = b.open();
    b.constant(Literal::i32(1));
    b.close();
    b.push(Op::Loop { body });
    b.push(Op::Loop { body });
    assert_eq!(codes(b), ["V0104"]);
}

#[test]
fn a_block_inside_itself() {
    let mut b = builder();
    let body = b.open();
    b.push(Op::Loop { body });
    b.close();
    b.push(Op::Loop { body });
    assert_eq!(codes(b), ["V0104"]);
}

//! Expansion of `control.rs`.

#[allow(
    unused_parens,
    unused_braces,
    unreachable_code,
    clippy::all,
    reason = "expansion of #[kernel_fn]"
)]
#[track_caller]
fn control(x: V<F32>, names: &[&str]) -> V<F32> {
    let __frame = ::dsl::plumbing::frame("control");
    (move || -> V<F32> {
        let s = ::dsl::plumbing::var("s", x);
        let mut count = host!(0usize);
        for name in unroll(names.iter()) {
            {
                let __if2 = ::dsl::plumbing::if_begin(
                    ::dsl::plumbing::gt(name.len(), 3),
                );
                let __then = if ::dsl::plumbing::if_then(&__if2) {
                    ::dsl::plumbing::Arm::Taken({
                        {
                            ::dsl::plumbing::host_jump(&__if2);
                            break;
                        };
                    })
                } else {
                    ::dsl::plumbing::Arm::Skipped
                };
                let __else = if ::dsl::plumbing::if_else(&__if2) {
                    ::dsl::plumbing::Arm::Taken({})
                } else {
                    ::dsl::plumbing::Arm::Skipped
                };
                ::dsl::plumbing::if_end(__if2, (__then, __else))
            }
            count += 1;
        }
        {
            let __loop3 = ::dsl::plumbing::while_begin();
            ::dsl::plumbing::while_test(&__loop3, ::dsl::plumbing::lt(s.get(), 8.0));
            {
                s.set(s.get() * (2.0));
                {
                    let __if4 = ::dsl::plumbing::if_begin({
                        let __left = ::dsl::plumbing::eq(s.get(), 4.0);
                        let __right = if ::dsl::plumbing::short_or(&__left) {
                            ::dsl::plumbing::Arm::Skipped
                        } else {
                            ::dsl::plumbing::Arm::Taken(
                                ::dsl::plumbing::ne(s.get(), s.get()),
                            )
                        };
                        ::dsl::plumbing::or(__left, __right)
                    });
                    let __then = if ::dsl::plumbing::if_then(&__if4) {
                        ::dsl::plumbing::Arm::Taken({
                            ::dsl::plumbing::continue_(&__loop3);
                        })
                    } else {
                        ::dsl::plumbing::Arm::Skipped
                    };
                    let __else = if ::dsl::plumbing::if_else(&__if4) {
                        ::dsl::plumbing::Arm::Taken({})
                    } else {
                        ::dsl::plumbing::Arm::Skipped
                    };
                    ::dsl::plumbing::if_end(__if4, (__then, __else))
                }
            }
            __loop3.end();
        }
        ::dsl::plumbing::name("acc");
        let acc = frag::<F32, 1>([count]);
        {
            let (__loop5, i) = ::dsl::plumbing::for_begin(
                ::dsl::plumbing::range(0, count),
                &["i"],
            );
            {
                {
                    let (__tile, __index) = (acc, i);
                    __tile
                        .store_(
                            __index,
                            __tile.load_(__index)
                                + ({
                                    let __if6 = ::dsl::plumbing::if_begin(
                                        ::dsl::plumbing::gt(i, 2),
                                    );
                                    let __then = if ::dsl::plumbing::if_then(&__if6) {
                                        ::dsl::plumbing::Arm::Taken({ s.get() })
                                    } else {
                                        ::dsl::plumbing::Arm::Skipped
                                    };
                                    let __else = if ::dsl::plumbing::if_else(&__if6) {
                                        ::dsl::plumbing::Arm::Taken({ 0.0 })
                                    } else {
                                        ::dsl::plumbing::Arm::Skipped
                                    };
                                    ::dsl::plumbing::if_end(__if6, (__then, __else))
                                }),
                        )
                };
            }
            __loop5.end();
        }
        match names.first() {
            Some(s) if s.is_empty() => lit(0.0),
            _ => s.get(),
        }
    })()
}

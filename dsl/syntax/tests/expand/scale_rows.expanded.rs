//! Expansion of `scale_rows.rs`.

#[allow(
    dead_code,
    unused_imports,
    unused_parens,
    unused_braces,
    unreachable_code,
    private_interfaces,
    private_bounds,
    clippy::all,
    reason = "expansion of #[kernel]"
)]
pub mod scale_rows {
    use super::*;
    /// Definition of this kernel for chosen dtypes.
    #[derive(::core::fmt::Debug)]
    pub struct Kernel<T: Float> {
        info: ::dsl::plumbing::KernelInfo,
        dtypes: ::dsl::plumbing::PhantomData<fn() -> (T,)>,
    }
    /// The kernel for chosen dtypes.
    pub fn kernel<T: Float>() -> ::dsl::plumbing::Arc<dyn ::dsl::plumbing::KernelDef> {
        ::dsl::plumbing::Arc::new(Kernel::<T> {
            info: ::dsl::plumbing::KernelInfo {
                name: "scale_rows".into(),
                file: here().file().into(),
                line: here().line(),
                dtypes: ::std::vec![("T".into(), ::dsl::plumbing::dtype:: < T > ())],
                params: ::std::vec![
                    ::dsl::plumbing::ParamInfo { name : "x".into(), kind :
                    ::dsl::plumbing::ParamInfoKind::Tensor { dtype :
                    ::dsl::plumbing::dtype:: < T > (), access :
                    ::dsl::plumbing::Access::In, dims :
                    ::std::vec![::dsl::plumbing::DimExpr::Sym("t".into()),
                    ::dsl::plumbing::DimExpr::Sym("h".into())], strides :
                    ::core::option::Option::None, }, optional : false },
                    ::dsl::plumbing::ParamInfo { name : "s".into(), kind :
                    ::dsl::plumbing::ParamInfoKind::Tensor { dtype :
                    ::dsl::plumbing::dtype:: < F32 > (), access :
                    ::dsl::plumbing::Access::In, dims :
                    ::std::vec![::dsl::plumbing::DimExpr::Sym("t".into())], strides :
                    ::core::option::Option::None, }, optional : false },
                    ::dsl::plumbing::ParamInfo { name : "y".into(), kind :
                    ::dsl::plumbing::ParamInfoKind::Tensor { dtype :
                    ::dsl::plumbing::dtype:: < T > (), access :
                    ::dsl::plumbing::Access::Out, dims :
                    ::std::vec![::dsl::plumbing::DimExpr::Sym("t".into()),
                    ::dsl::plumbing::DimExpr::Sym("h".into())], strides :
                    ::core::option::Option::None, }, optional : false }
                ],
                dims: ::std::vec![
                    ::dsl::plumbing::DimInfo { name : "t".into(), fixed : false },
                    ::dsl::plumbing::DimInfo { name : "h".into(), fixed : true }
                ],
                deterministic: false,
                batch_invariant: ::std::vec!["t".into()],
                launch: ::dsl::plumbing::LaunchMode {
                    cooperative: false,
                    dependent: false,
                },
            },
            dtypes: ::dsl::plumbing::PhantomData,
        })
    }
    impl<T: Float> ::dsl::plumbing::KernelDef for Kernel<T> {
        fn info(&self) -> &::dsl::plumbing::KernelInfo {
            &self.info
        }
        fn space(&self) -> ::dsl::plumbing::Space {
            <Cfg as ::dsl::plumbing::KernelConfig>::space()
        }
        fn require(
            &self,
            dims: &::dsl::plumbing::BTreeMap<::std::string::String, usize>,
            config: &::dsl::plumbing::Config,
        ) -> ::core::result::Result<(), ::std::vec::Vec<::std::string::String>> {
            ::dsl::plumbing::require::<
                Cfg,
            >(
                dims,
                config,
                |__dim, cfg, __check| {
                    let _ = cfg;
                    #[allow(
                        unused_variables,
                        reason = "not every clause uses every dimension"
                    )]
                    let t: usize = __dim("t");
                    #[allow(
                        unused_variables,
                        reason = "not every clause uses every dimension"
                    )]
                    let h: usize = __dim("h");
                    __check("h % 8 == 0", &|| h % 8 == 0);
                },
            )
        }
        fn build(
            &self,
            request: &::dsl::plumbing::BuildRequest,
        ) -> ::core::result::Result<
            ::dsl::plumbing::Kernel,
            ::std::vec::Vec<::dsl::plumbing::Diagnostic>,
        > {
            ::dsl::plumbing::build::<
                Cfg,
            >(
                &self.info,
                here(),
                request,
                |__cx, cfg| {
                    #[allow(
                        unused_variables,
                        reason = "not every kernel uses every dimension"
                    )]
                    let t = __cx.dynamic("t");
                    #[allow(
                        unused_variables,
                        reason = "not every kernel uses every dimension"
                    )]
                    let h = __cx.fixed("h");
                    let x = __cx.tensor::<T, 2usize, ::dsl::plumbing::Rd>(0usize);
                    let s = __cx.tensor::<F32, 1usize, ::dsl::plumbing::Rd>(1usize);
                    let y = __cx.tensor::<T, 2usize, ::dsl::plumbing::Wr>(2usize);
                    __cx.fact("h % 8 == 0", h % 8, ::dsl::plumbing::Relation::Eq, 0);
                    let r0 = ((grid(t.div_ceil(cfg.rows))) * (cfg.rows));
                    let top = ::dsl::plumbing::var("top", 0.0f32);
                    {
                        let __label1 = ::dsl::plumbing::label("scale");
                        {
                            let (__loop2, (i, j)) = ::dsl::plumbing::for_begin(
                                parallel([cfg.rows, h]),
                                &["i", "j"],
                            );
                            {
                                let v = ((x.load_((((r0) + (i)), j)).to::<F32>())
                                    * (s.load_(((r0) + (i)))));
                                y.store_((((r0) + (i)), j), v.to::<T>());
                            }
                            __loop2.end();
                        }
                    }
                    {
                        let __if3 = ::dsl::plumbing::if_begin({
                            let __left = cfg.track;
                            let __right = if ::dsl::plumbing::short_and(&__left) {
                                ::dsl::plumbing::Arm::Skipped
                            } else {
                                ::dsl::plumbing::Arm::Taken(::dsl::plumbing::lt(r0, 8))
                            };
                            ::dsl::plumbing::and(__left, __right)
                        });
                        let __then = if ::dsl::plumbing::if_then(&__if3) {
                            ::dsl::plumbing::Arm::Taken({
                                top.set(max(top.get(), 1.0));
                            })
                        } else {
                            ::dsl::plumbing::Arm::Skipped
                        };
                        let __else = if ::dsl::plumbing::if_else(&__if3) {
                            ::dsl::plumbing::Arm::Taken({})
                        } else {
                            ::dsl::plumbing::Arm::Skipped
                        };
                        ::dsl::plumbing::if_end(__if3, (__then, __else))
                    }
                },
            )
        }
    }
    /// Where the kernel is declared.
    fn here() -> &'static ::dsl::plumbing::Location<'static> {
        ::dsl::plumbing::Location::caller()
    }
    /// Arguments of a launch, in the order of the parameters.
    #[derive(Clone, Copy, ::core::fmt::Debug)]
    pub struct Args<'a, T: Float> {
        ///Parameter `x`.
        pub x: ::dsl::plumbing::View<'a, T, 2usize>,
        ///Parameter `s`.
        pub s: ::dsl::plumbing::View<'a, F32, 1usize>,
        ///Parameter `y`.
        pub y: ::dsl::plumbing::ViewMut<'a, T, 2usize>,
    }
    impl<'a, T: Float> Args<'a, T> {
        /// As data for a launch.
        pub fn into_args(self) -> ::std::vec::Vec<::dsl::plumbing::Arg> {
            ::std::vec![
                ::core::convert::Into::into(self.x), ::core::convert::Into::into(self.s),
                ::core::convert::Into::into(self.y)
            ]
        }
    }
    /// Checks and enqueues one launch.
    ///
    /// # Errors
    /// What the launcher refuses, or fails at.
    pub fn launch<T: Float, __L: ::dsl::plumbing::Launcher>(
        on: &__L,
        config: &Cfg,
        args: Args<'_, T>,
    ) -> ::core::result::Result<(), <__L as ::dsl::plumbing::Launcher>::Error> {
        on.launch(
            &::dsl::plumbing::Launch {
                kernel: kernel::<T>(),
                config: ::dsl::plumbing::KernelConfig::to_config(config),
                args: args.into_args(),
            },
        )
    }
}

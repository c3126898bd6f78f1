//! Expansion of `parameters.rs`.

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
mod parameters {
    use super::*;
    /// Definition of this kernel for chosen dtypes.
    #[derive(::core::fmt::Debug)]
    pub struct Kernel {
        info: ::dsl::plumbing::KernelInfo,
        dtypes: ::dsl::plumbing::PhantomData<fn() -> ()>,
    }
    /// The kernel for chosen dtypes.
    pub fn kernel() -> ::dsl::plumbing::Arc<dyn ::dsl::plumbing::KernelDef> {
        ::dsl::plumbing::Arc::new(Kernel {
            info: ::dsl::plumbing::KernelInfo {
                name: "parameters".into(),
                file: here().file().into(),
                line: here().line(),
                dtypes: ::std::vec![],
                params: ::std::vec![
                    ::dsl::plumbing::ParamInfo { name : "x".into(), kind :
                    ::dsl::plumbing::ParamInfoKind::Tensor { dtype :
                    ::dsl::plumbing::dtype:: < Bf16 > (), access :
                    ::dsl::plumbing::Access::In, dims :
                    ::std::vec![::dsl::plumbing::DimExpr::Sym("m".into()),
                    ::dsl::plumbing::DimExpr::Mul(::std::boxed::Box::new(::dsl::plumbing::DimExpr::Ceil(::std::boxed::Box::new(::dsl::plumbing::DimExpr::Sym("k"
                    .into())),
                    ::std::boxed::Box::new(::dsl::plumbing::DimExpr::Const(128usize)))),
                    ::std::boxed::Box::new(::dsl::plumbing::DimExpr::Const(2usize)))],
                    strides :
                    ::core::option::Option::Some(::std::vec![::dsl::plumbing::StrideInfo::Expr(::dsl::plumbing::DimExpr::Sym("ld"
                    .into())), ::dsl::plumbing::StrideInfo::Any]), }, optional : false },
                    ::dsl::plumbing::ParamInfo { name : "z".into(), kind :
                    ::dsl::plumbing::ParamInfoKind::Tensor { dtype :
                    ::dsl::plumbing::dtype:: < F32 > (), access :
                    ::dsl::plumbing::Access::InOut, dims :
                    ::std::vec![::dsl::plumbing::DimExpr::Sym("k".into())], strides :
                    ::core::option::Option::None, }, optional : false },
                    ::dsl::plumbing::ParamInfo { name : "b".into(), kind :
                    ::dsl::plumbing::ParamInfoKind::Tensor { dtype :
                    ::dsl::plumbing::dtype:: < F32 > (), access :
                    ::dsl::plumbing::Access::In, dims :
                    ::std::vec![::dsl::plumbing::DimExpr::Sym("m".into())], strides :
                    ::core::option::Option::None, }, optional : true },
                    ::dsl::plumbing::ParamInfo { name : "eps".into(), kind :
                    ::dsl::plumbing::ParamInfoKind::Scalar { dtype :
                    ::dsl::plumbing::dtype:: < F32 > () }, optional : false },
                    ::dsl::plumbing::ParamInfo { name : "n".into(), kind :
                    ::dsl::plumbing::ParamInfoKind::Scalar { dtype :
                    ::dsl::plumbing::dtype:: < I32 > () }, optional : true }
                ],
                dims: ::std::vec![
                    ::dsl::plumbing::DimInfo { name : "m".into(), fixed : false },
                    ::dsl::plumbing::DimInfo { name : "ld".into(), fixed : false },
                    ::dsl::plumbing::DimInfo { name : "k".into(), fixed : false }
                ],
                deterministic: false,
                batch_invariant: ::std::vec![],
                launch: ::dsl::plumbing::LaunchMode {
                    cooperative: false,
                    dependent: false,
                },
            },
            dtypes: ::dsl::plumbing::PhantomData,
        })
    }
    impl ::dsl::plumbing::KernelDef for Kernel {
        fn info(&self) -> &::dsl::plumbing::KernelInfo {
            &self.info
        }
        fn space(&self) -> ::dsl::plumbing::Space {
            <() as ::dsl::plumbing::KernelConfig>::space()
        }
        fn require(
            &self,
            dims: &::dsl::plumbing::BTreeMap<::std::string::String, usize>,
            config: &::dsl::plumbing::Config,
        ) -> ::core::result::Result<(), ::std::vec::Vec<::std::string::String>> {
            ::dsl::plumbing::require::<
                (),
            >(
                dims,
                config,
                |__dim, _, __check| {
                    #[allow(
                        unused_variables,
                        reason = "not every clause uses every dimension"
                    )]
                    let m: usize = __dim("m");
                    #[allow(
                        unused_variables,
                        reason = "not every clause uses every dimension"
                    )]
                    let ld: usize = __dim("ld");
                    #[allow(
                        unused_variables,
                        reason = "not every clause uses every dimension"
                    )]
                    let k: usize = __dim("k");
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
                (),
            >(
                &self.info,
                here(),
                request,
                |__cx, _| {
                    #[allow(
                        unused_variables,
                        reason = "not every kernel uses every dimension"
                    )]
                    let m = __cx.dynamic("m");
                    #[allow(
                        unused_variables,
                        reason = "not every kernel uses every dimension"
                    )]
                    let ld = __cx.dynamic("ld");
                    #[allow(
                        unused_variables,
                        reason = "not every kernel uses every dimension"
                    )]
                    let k = __cx.dynamic("k");
                    let x = __cx.tensor::<Bf16, 2usize, ::dsl::plumbing::Rd>(0usize);
                    let z = __cx.tensor::<F32, 1usize, ::dsl::plumbing::Wr>(1usize);
                    let b = __cx
                        .optional_tensor::<F32, 1usize, ::dsl::plumbing::Rd>(2usize);
                    let eps = __cx.scalar::<F32>(3usize);
                    let n = __cx.optional_scalar::<I32>(4usize);
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
    pub struct Args<'a> {
        ///Parameter `x`.
        pub x: ::dsl::plumbing::View<'a, Bf16, 2usize>,
        ///Parameter `z`.
        pub z: ::dsl::plumbing::ViewMut<'a, F32, 1usize>,
        ///Parameter `b`.
        pub b: ::core::option::Option<::dsl::plumbing::View<'a, F32, 1usize>>,
        ///Parameter `eps`.
        pub eps: <F32 as ::dsl::plumbing::DType>::Host,
        ///Parameter `n`.
        pub n: ::core::option::Option<<I32 as ::dsl::plumbing::DType>::Host>,
    }
    impl<'a> Args<'a> {
        /// As data for a launch.
        pub fn into_args(self) -> ::std::vec::Vec<::dsl::plumbing::Arg> {
            ::std::vec![
                ::core::convert::Into::into(self.x), ::core::convert::Into::into(self.z),
                ::dsl::plumbing::optional(self.b.map(::core::convert::Into::into)),
                ::dsl::plumbing::scalar:: < F32 > (self.eps),
                ::dsl::plumbing::optional(self.n.map(::dsl::plumbing::scalar:: < I32 >))
            ]
        }
    }
    /// Checks and enqueues one launch.
    ///
    /// # Errors
    /// What the launcher refuses, or fails at.
    pub fn launch<__L: ::dsl::plumbing::Launcher>(
        on: &__L,
        config: &(),
        args: Args<'_>,
    ) -> ::core::result::Result<(), <__L as ::dsl::plumbing::Launcher>::Error> {
        on.launch(
            &::dsl::plumbing::Launch {
                kernel: kernel(),
                config: ::dsl::plumbing::KernelConfig::to_config(config),
                args: args.into_args(),
            },
        )
    }
}

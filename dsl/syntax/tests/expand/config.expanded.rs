//! Expansion of `config.rs`.

impl ::dsl::plumbing::KernelConfig for Cfg {
    fn space() -> ::dsl::plumbing::Space {
        ::dsl::plumbing::Space {
            name: "Cfg".into(),
            axes: ::std::vec![
                ::dsl::plumbing::axis:: < usize > ("rows", & [1, 2],
                ::core::option::Option::None, false, " Rows a block."),
                ::dsl::plumbing::axis:: < usize > ("group", & [],
                ::core::option::Option::Some(128), true, ""), ::dsl::plumbing::axis:: <
                bool > ("fast", & [], ::core::option::Option::Some(false), false, "")
            ],
        }
    }
    fn to_config(&self) -> ::dsl::plumbing::Config {
        #[allow(unused_mut, reason = "a config may have no fields")]
        let mut fields = ::dsl::plumbing::BTreeMap::new();
        fields
            .insert(
                "rows".into(),
                <usize as ::dsl::plumbing::ConfigField>::to_value(&self.rows),
            );
        fields
            .insert(
                "group".into(),
                <usize as ::dsl::plumbing::ConfigField>::to_value(&self.group),
            );
        fields
            .insert(
                "fast".into(),
                <bool as ::dsl::plumbing::ConfigField>::to_value(&self.fast),
            );
        ::dsl::plumbing::Config(fields)
    }
    fn from_config(
        config: &::dsl::plumbing::Config,
    ) -> ::core::result::Result<Self, ::dsl::plumbing::ConfigError> {
        ::dsl::plumbing::only(config, &["rows", "group", "fast"])?;
        ::core::result::Result::Ok(Cfg {
            rows: ::dsl::plumbing::field::<usize>(config, "rows")?,
            group: ::dsl::plumbing::field::<usize>(config, "group")?,
            fast: ::dsl::plumbing::field::<bool>(config, "fast")?,
        })
    }
}
impl ::core::default::Default for Cfg {
    /// The default of the space.
    fn default() -> Self {
        let default = <Cfg as ::dsl::plumbing::KernelConfig>::space().default_config();
        <Cfg as ::dsl::plumbing::KernelConfig>::from_config(&default)
            .expect("a space holds values of its fields' types")
    }
}

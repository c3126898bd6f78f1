//! Programs that must not compile, with the text the user reads. `TRYBUILD=overwrite` rewrites the expectations.

#[test]
fn mistakes_are_reported_at_the_users_token() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

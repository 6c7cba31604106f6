//! What a person asks of the tests by variables: the size of experiments, and servers that the
//! tests do not start.

/// Returns `small`, or `full` when the variable `BATCHWRIGHT_FULL_SIZE` is `1`.
///
/// Experiments use it: they are quick tests by default and measure at full size on demand.
pub fn sized<T>(small: T, full: T) -> T {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test has no `main` that could pass it"
    )]
    let is_full = std::env::var("BATCHWRIGHT_FULL_SIZE").is_ok_and(|value| value == "1");
    if is_full { full } else { small }
}

/// Returns the value of a variable that a person sets for a test, if it is set and not empty.
pub fn asked(variable: &str) -> Option<String> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test has no `main` that could pass it"
    )]
    let value = std::env::var(variable).ok();
    value.filter(|value| !value.is_empty())
}

//! What tests do not look at, because a tool is not installed.

use std::io::Write as _;

/// Says what a test leaves out, and what to install. `test.sh` repeats it at its end: other than
/// what a test prints, it also appears if the test passes.
pub fn left_out(what: &str) {
    // A test that cannot write to its log has nobody to tell.
    let _ = writeln!(std::io::stderr(), "left out: {what}");
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_is_left_out_appears_although_the_test_passes() {
        if std::env::args().any(|argument| argument == "--show-output") {
            return left_out("a tool");
        }
        let name = "left_out::tests::what_is_left_out_appears_although_the_test_passes";
        let again = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--show-output"])
            .output()
            .unwrap();
        assert!(again.status.success());
        assert_eq!(
            String::from_utf8(again.stderr).unwrap(),
            "left out: a tool\n"
        );
    }
}

//! The arrows between the top-level modules of a crate.

use std::collections::BTreeSet;

use crate::code::{Source, sources, words};
use crate::{Place, report};

#[test]
fn modules_of_a_crate_form_no_circle() {
    let arrows = arrows();
    let reaches = |package: &str, from: &str, goal: &str| {
        let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
        while let Some(module) = open.pop() {
            let next = arrows
                .iter()
                .filter(|arrow| arrow.package == package && arrow.from == module);
            open.extend(
                next.map(|arrow| arrow.to.as_str())
                    .filter(|to| seen.insert(to)),
            );
        }
        seen.contains(goal)
    };
    let mut broken = Vec::new();
    for Arrow {
        package,
        from,
        to,
        path,
        line,
    } in &arrows
    {
        if reaches(package, to, from) {
            broken.push(Place {
                path: path.clone(),
                line: *line,
                rule: format!("{from} uses {to}, which uses {from}: move what both need"),
            });
        }
    }
    report(&broken);
}

#[test]
fn paths_in_braces_are_read_one_by_one() {
    assert_eq!(first_names("one::two;"), ["one"]);
    assert_eq!(
        first_names("{one::{a, b},\n    two, three::c};\nuse four;"),
        ["one", "two", "three"]
    );
}

/// A module that names another module of its crate.
struct Arrow {
    package: String,
    from: String,
    to: String,
    path: String,
    line: usize,
}

/// Returns the arrows between the top-level modules of each crate. Tests may use whatever they need.
fn arrows() -> Vec<Arrow> {
    let sources = sources();
    let modules: BTreeSet<(&str, &str)> = sources.iter().filter_map(module).collect();
    let mut arrows = Vec::new();
    for source in &sources {
        let Some((package, from)) = module(source) else {
            continue;
        };
        let code = match source.code.rfind("#[cfg(test)]") {
            Some(at) if source.code[at..].contains("mod tests {") => &source.code[..at],
            _ => &source.code,
        };
        for (at, path) in code.match_indices("crate::") {
            for to in first_names(&code[at + path.len()..]) {
                if to != from && modules.contains(&(package, to)) {
                    arrows.push(Arrow {
                        package: package.to_owned(),
                        from: from.to_owned(),
                        to: to.to_owned(),
                        path: source.path.clone(),
                        line: code[..at].lines().count(),
                    });
                }
            }
        }
    }
    arrows
}

/// Returns the crate and the top-level module of a source; `None` for roots and for modules of tests.
fn module(source: &Source) -> Option<(&str, &str)> {
    let (package, file) = source.path.split_once("/src/")?;
    let module = file.split('/').next()?.trim_end_matches(".rs");
    let is_root = ["lib", "main", "bin"].contains(&module);
    let is_test = file.ends_with("tests.rs") || file.contains("/tests/");
    (!is_root && !is_test).then_some((package, module))
}

/// Returns the first names of the paths behind `crate::`: one name, or those of a list in braces.
fn first_names(code: &str) -> Vec<&str> {
    if !code.starts_with('{') {
        return words(code).take(1).collect();
    }
    let (mut depth, mut begins, mut names) = (0, false, Vec::new());
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match c {
            '}' if depth == 0 => break,
            '{' | ',' => begins = depth == 1,
            c if begins && !c.is_whitespace() => {
                names.extend(words(&code[at..]).next());
                begins = false;
            }
            _ => {}
        }
    }
    names
}

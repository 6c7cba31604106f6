//! The arrows between the modules of a crate. A module is a file, so these are the arrows between
//! files.

use std::collections::{HashMap, HashSet};

use crate::code::{Source, sources};
use crate::{Place, report};

#[test]
fn files_of_a_crate_form_no_circle() {
    report(&circles(&arrows()));
}

/// The modules of the job service that join its features: they name each feature, and each feature
/// reads them.
const JOINTS: [&str; 2] = ["options", "state"];

/// Two folders can need each other although no two files do.
#[test]
fn top_level_modules_of_a_crate_form_no_circle() {
    let mut arrows = arrows();
    let is_joint = |module: &[String]| JOINTS.contains(&module[0].as_str());
    arrows.retain(
        |Arrow {
             package, from, to, ..
         }| {
            package != "job-service" || !is_joint(from) && !to.is_empty() && !is_joint(to)
        },
    );
    for arrow in &mut arrows {
        arrow.from.truncate(1);
        arrow.to.truncate(1);
    }
    report(&circles(&arrows));
}

#[test]
fn paths_are_read_one_by_one() {
    let read = |code| -> Vec<String> {
        let paths = paths(code).into_iter();
        paths.map(|(path, _)| path.join("::")).collect()
    };
    assert_eq!(read("use crate::one::Two as Three;"), ["crate::one::Two"]);
    assert_eq!(
        read("use super::{one::{self, B},\n    two as three, four::c};\nuse five;"),
        [
            "super::one::self",
            "super::one::B",
            "super::two",
            "super::four::c"
        ]
    );
    assert_eq!(
        read("fn a() -> self::One<super::super::Two> { scrate::b(my::crate::c) }"),
        ["self::One", "super::super::Two"]
    );
}

/// A module that names another module of its crate, each as the names from the root on.
struct Arrow {
    package: String,
    from: Vec<String>,
    to: Vec<String>,
    path: String,
    line: usize,
}

/// Returns the arrows that are in circles. A module and those inside it are one.
fn circles(arrows: &[Arrow]) -> Vec<Place> {
    let is_inside = |arrow: &&Arrow| {
        let Arrow { from, to, .. } = arrow;
        from.starts_with(to) || to.starts_with(from)
    };
    let arrows: Vec<&Arrow> = arrows.iter().filter(|arrow| !is_inside(arrow)).collect();
    let mut next: HashMap<(&str, &[String]), Vec<&[String]>> = HashMap::new();
    for arrow in &arrows {
        let from = (arrow.package.as_str(), arrow.from.as_slice());
        next.entry(from).or_default().push(&arrow.to);
    }
    let is_circle = |arrow: &&Arrow| {
        let Arrow { from, to, .. } = arrow;
        let (mut seen, mut open) = (HashSet::from([to.as_slice()]), vec![to.as_slice()]);
        while let Some(module) = open.pop() {
            let next = next.get(&(arrow.package.as_str(), module));
            open.extend(next.into_iter().flatten().filter(|to| seen.insert(to)));
        }
        seen.contains(from.as_slice())
    };
    let broken = arrows.into_iter().filter(is_circle);
    broken
        .map(|arrow| {
            let (from, to) = (arrow.from.join("::"), arrow.to.join("::"));
            Place {
                path: arrow.path.clone(),
                line: arrow.line,
                rule: format!("{from} uses {to}, which uses {from}: move what both need"),
            }
        })
        .collect()
}

/// Returns the arrows between the modules of each crate. Tests may use whatever they need.
fn arrows() -> Vec<Arrow> {
    let sources = sources();
    let modules: HashSet<(&str, Vec<&str>)> = sources.iter().filter_map(module).collect();
    let mut arrows = Vec::new();
    for source in &sources {
        let Some((package, from)) = module(source) else {
            continue;
        };
        let code = match source.code.rfind("#[cfg(test)]") {
            Some(at) if source.code[at..].contains("mod tests {") => &source.code[..at],
            _ => &source.code,
        };
        for (path, at) in paths(code) {
            let mut to = match path[0] {
                "crate" => Vec::new(),
                _ => from.clone(),
            };
            for name in &path {
                match *name {
                    "crate" | "self" => {}
                    "super" => drop(to.pop()),
                    name => {
                        to.push(name);
                        if !modules.contains(&(package, to.clone())) {
                            to.pop();
                            break;
                        }
                    }
                }
            }
            let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            arrows.push(Arrow {
                package: package.to_owned(),
                from: own(&from),
                to: own(&to),
                path: source.path.clone(),
                line: code[..at].lines().count(),
            });
        }
    }
    arrows
}

/// Returns the crate and the names of a module; `None` for roots and for modules of tests.
fn module(source: &Source) -> Option<(&str, Vec<&str>)> {
    let (package, file) = source.path.split_once("/src/")?;
    let names: Vec<&str> = file.strip_suffix(".rs")?.split('/').collect();
    let is_root = ["lib", "main", "bin"].contains(&names[0]);
    let is_test = names.last() == Some(&"tests") || names.contains(&"tests");
    (!is_root && !is_test).then_some((package, names))
}

/// Returns the paths that begin with `crate`, `super` or `self`, and where each begins. A list in
/// braces is several paths.
fn paths(code: &str) -> Vec<(Vec<&str>, usize)> {
    let mut found = Vec::new();
    for begin in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(begin) {
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                let mut paths = Vec::new();
                read_path(&code[at..], &mut Vec::new(), &mut paths);
                found.extend(paths.into_iter().map(|path| (path, at)));
            }
        }
    }
    found.sort_by_key(|(_, at)| *at);
    found
}

/// Reads one path, or those of a list in braces, behind the names that are read. Returns the rest.
fn read_path<'a>(
    code: &'a str,
    names: &mut Vec<&'a str>,
    found: &mut Vec<Vec<&'a str>>,
) -> &'a str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            let read = names.len();
            rest = read_path(rest, names, found);
            names.truncate(read);
            // What follows a name in a list is `as` and another name.
            let Some(end) = rest.find([',', '}']) else {
                return "";
            };
            let is_last = rest[end..].starts_with('}');
            rest = rest[end + 1..].trim_start();
            if is_last {
                return rest;
            }
            if let Some(rest) = rest.strip_prefix('}') {
                return rest;
            }
        }
    }
    let end = code.find(|c: char| !c.is_alphanumeric() && c != '_');
    let (name, rest) = code.split_at(end.unwrap_or(code.len()));
    if !name.is_empty() {
        names.push(name);
    }
    match rest.strip_prefix("::") {
        Some(rest) if !name.is_empty() => read_path(rest, names, found),
        _ => {
            found.push(names.clone());
            rest
        }
    }
}

use proptest::prelude::*;
use store::Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};

use super::*;

fn is(field: TextField, comparison: Comparison, value: &str) -> Filter {
    Filter::Text(field, TextTest::Is(comparison, value.to_owned()))
}

fn name(value: &str) -> Filter {
    is(TextField::Name, Equal, value)
}

fn label(key: &str) -> TextField {
    TextField::Label(key.to_owned())
}

#[test]
fn every_notation_of_an_operator_means_the_same() {
    for (spellings, comparison) in [
        (&["=="][..], Equal),
        (&["!="], NotEqual),
        (&["=lt=", "<"], Less),
        (&["=le=", "<="], LessOrEqual),
        (&["=gt=", ">"], Greater),
        (&["=ge=", ">="], GreaterOrEqual),
    ] {
        for spelling in spellings {
            for (selector, field) in [
                ("id", TextField::Id),
                ("name", TextField::Name),
                ("labels.a:b.c-1", label("a:b.c-1")),
            ] {
                assert_eq!(
                    parse(&format!("{selector}{spelling}x")),
                    Ok(is(field.clone(), comparison, "x")),
                    "{selector}{spelling}"
                );
                assert_eq!(
                    parse(&format!(" {selector} {spelling} x ")),
                    Ok(is(field, comparison, "x")),
                    "{selector}{spelling}"
                );
            }
            assert_eq!(
                parse(&format!("percentageComplete{spelling}46.67")),
                Ok(Filter::Percentage(comparison, 46.67))
            );
            assert_eq!(
                parse(&format!("blockedTasks{spelling}0")),
                Ok(Filter::BlockedTasks(comparison, 0.0))
            );
        }
    }
    let list = |values: &[&str]| {
        values
            .iter()
            .map(|value| (*value).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        parse("name=in=(a, 'b,)' ,c*)"),
        Ok(Filter::Text(
            TextField::Name,
            TextTest::OneOf(list(&["a", "b,)", "c*"]))
        ))
    );
    assert_eq!(
        parse("id=out=(a)"),
        Ok(Filter::Text(TextField::Id, TextTest::NoneOf(list(&["a"]))))
    );
    assert_eq!(
        parse("labels.x=in=a"),
        Ok(Filter::Text(label("x"), TextTest::OneOf(list(&["a"]))))
    );
    let percentages = |comparison| {
        vec![
            Filter::Percentage(comparison, 0.0),
            Filter::Percentage(comparison, 100.0),
        ]
    };
    assert_eq!(
        parse("percentageComplete=in=(0,1e2)"),
        Ok(Filter::Any(percentages(Equal)))
    );
    assert_eq!(
        parse("percentageComplete=out=(0,'100')"),
        Ok(Filter::All(percentages(NotEqual)))
    );
}

#[test]
fn statuses_are_compared_alphabetically() {
    use JobStatus::{Active, Cancelled, Completed, Failed, Paused, Waiting};
    for (filter, statuses) in [
        ("status==Active", vec![Active]),
        (
            "status!='Active'",
            vec![Cancelled, Completed, Failed, Paused, Waiting],
        ),
        ("status<Completed", vec![Active, Cancelled]),
        ("status>=Paused", vec![Paused, Waiting]),
        ("status=gt=Waiting", vec![]),
        ("status=in=(Waiting,Active)", vec![Active, Waiting]),
        (
            "status=out=(Waiting,Active,Paused)",
            vec![Cancelled, Completed, Failed],
        ),
    ] {
        assert_eq!(parse(filter), Ok(Filter::Status(statuses)), "{filter}");
    }
}

#[test]
fn jobs_that_are_shown_as_blocked_are_active_and_only_equality_tells_them_from_others() {
    use JobStatus::{Active, Cancelled, Completed, Failed, Paused, Waiting};
    let all = vec![Active, Cancelled, Completed, Failed, Paused, Waiting];
    let is = |statuses: &[JobStatus]| {
        let is_one = Filter::Status(statuses.to_vec());
        Filter::Any(vec![is_one, Filter::ShownAsBlocked(true)])
    };
    let is_not = |statuses: &[JobStatus]| {
        let is_one = Filter::Status(statuses.to_vec());
        Filter::All(vec![is_one, Filter::ShownAsBlocked(false)])
    };
    for (filter, expected) in [
        ("status==Blocked", is(&[])),
        ("status=in=(Blocked,Failed)", is(&[Failed])),
        ("status!=Blocked", is_not(&all)),
        ("status=out=(Active,Blocked)", is_not(&all[1..])),
        ("status<=Blocked", Filter::Status(vec![Active])),
        ("status>Blocked", Filter::Status(all[1..].to_vec())),
    ] {
        assert_eq!(parse(filter), Ok(expected), "{filter}");
    }
}

#[test]
fn number_of_conditions_on_labels_is_bounded_and_that_of_values_is_not() {
    let conditions = |number: usize| {
        let each = (0..number).map(|n| format!("labels.l{n}==x"));
        each.collect::<Vec<_>>().join(",")
    };
    assert!(parse(&conditions(MAX_LABELS)).is_ok());
    assert_eq!(
        parse(&conditions(MAX_LABELS + 1)).unwrap_err().to_string(),
        "Unable to parse filter: it has more than 50 conditions on labels. One =in= accepts several values of a label."
    );
    let values = vec!["v"; 4000].join(",");
    let several = format!("labels.l=in=({values});name=in=(x)");
    assert!(several.len() < MAX_BYTES && parse(&several).is_ok());
}

#[test]
fn and_binds_tighter_than_or_and_parentheses_tightest() {
    let [a, b, c] = ["a", "b", "c"].map(name);
    let (all, any) = (Filter::All, Filter::Any);
    for (filters, expected) in [
        (
            &[
                "name==a;name==b",
                "name==a and name==b",
                "name==a ;  name==b",
                "name==a  and  name==b",
            ][..],
            all(vec![a.clone(), b.clone()]),
        ),
        (
            &[
                "name==a,name==b",
                "name==a or name==b",
                "((name==a),(name==b))",
            ],
            any(vec![a.clone(), b.clone()]),
        ),
        (
            &[
                "name==a;name==b,name==c",
                "name==a and name==b or name==c",
                "(name==a;name==b),name==c",
            ],
            any(vec![all(vec![a.clone(), b.clone()]), c.clone()]),
        ),
        (
            &["name==c,name==a;name==b"],
            any(vec![c.clone(), all(vec![a.clone(), b.clone()])]),
        ),
        (
            &[
                "name==c;(name==a,name==b)",
                "name==c and ( name==a or name==b )",
            ],
            all(vec![c, any(vec![a, b])]),
        ),
    ] {
        for filter in filters {
            assert_eq!(parse(filter).as_ref(), Ok(&expected), "{filter}");
        }
    }
    // `and` and `or` within words are not separators.
    assert_eq!(
        parse("name==and;name==or"),
        Ok(Filter::All(vec![name("and"), name("or")]))
    );
    assert_eq!(parse("name==order"), Ok(name("order")));
}

#[test]
fn quoted_values_are_unescaped() {
    for (filter, value) in [
        ("name==Zürich", "Zürich"),
        ("name=='a b'", "a b"),
        (r#"name=="it's""#, "it's"),
        (r"name=='it\'s'", "it's"),
        (r#"name=="a \"b\" \\ \n""#, r#"a "b" \ n"#),
        ("name==''", ""),
        ("name=='(;,=!~<>)'", "(;,=!~<>)"),
        ("name==%_?[a]", "%_?[a]"),
        ("name==a:b.c/d+e-f", "a:b.c/d+e-f"),
        ("name=='🦀\\🦀'", "🦀🦀"),
        ("name==(a)", "a"),
    ] {
        assert_eq!(parse(filter), Ok(name(value)), "{filter}");
    }
}

#[test]
fn a_star_is_a_wildcard_only_for_equality() {
    let text = |test| Ok(Filter::Text(TextField::Name, test));
    assert_eq!(parse("name==a*"), text(TextTest::Like(Pattern::new("a*"))));
    assert_eq!(
        parse("name!='* b'"),
        text(TextTest::Unlike(Pattern::new("* b")))
    );
    assert_eq!(parse("name>a*"), text(TextTest::Is(Greater, "a*".into())));
    assert_eq!(
        parse("name=out=(a*)"),
        text(TextTest::NoneOf(vec!["a*".into()]))
    );
}

#[test]
fn each_invalid_filter_is_rejected_with_its_text() {
    let deep = format!("{}name==a{}", "(".repeat(33), ")".repeat(33));
    let long = format!("name=={}", "a".repeat(MAX_BYTES));
    let status = "Invalid value for status in filter: X. \
        It must be one of Active, Blocked, Cancelled, Completed, Failed, Paused, Waiting.";
    for (filter, message) in [
        ("colour==x", "Unsupported filter key specified: colour".to_owned()),
        ("Name==x", "Unsupported filter key specified: Name".into()),
        ("labels==x", "Unsupported filter key specified: labels".into()),
        ("labels.==x", "Unsupported filter key specified: labels.".into()),
        ("createTime>5", "Unsupported filter key specified: createTime".into()),
        ("status==X", status.into()),
        ("status==Act*", status.replace('X', "Act*")),
        ("status==active", status.replace('X', "active")),
        ("status=in=(Active,'')", status.replace('X', "")),
        ("percentageComplete>ten", "Invalid value for percentageComplete in filter: ten. It must be a number.".into()),
        ("percentageComplete==5*", "Invalid value for percentageComplete in filter: 5*. It must be a number.".into()),
        ("percentageComplete<NaN", "Invalid value for percentageComplete in filter: NaN. It must be a number.".into()),
        ("percentageComplete<1e999", "Invalid value for percentageComplete in filter: 1e999. It must be a number.".into()),
        ("name", "Unable to parse filter: an operator such as ==, !=, =lt= or =in= is expected at character 5.".into()),
        ("name=x", "Unable to parse filter: an operator such as ==, !=, =lt= or =in= is expected at character 5.".into()),
        ("name=like=x", "Unable to parse filter: there is no operator =like=.".into()),
        ("name==", "Unable to parse filter: a value is expected at character 7.".into()),
        ("ü==a;", "Unsupported filter key specified: ü".into()),
        (
            "name==ü;",
            "Unable to parse filter: a name such as id, name, status, percentageComplete or labels.KEY \
            is expected at character 9."
                .into(),
        ),
        ("name=='a", "Unable to parse filter: a closing ' is expected at character 9.".into()),
        ("name==\"a\\", "Unable to parse filter: a closing \" is expected at character 10.".into()),
        ("name=in=(a", "Unable to parse filter: ',' or ')' is expected at character 11.".into()),
        ("name=in=()", "Unable to parse filter: a value is expected at character 10.".into()),
        ("name==(a,b)", "Unable to parse filter: only =in= and =out= accept several values.".into()),
        ("(name==a", "Unable to parse filter: ' and ', ' or ' or ')' is expected at character 9.".into()),
        ("name==a)", "Unable to parse filter: ' and ', ' or ' or the end is expected at character 8.".into()),
        ("name==a b", "Unable to parse filter: ' and ', ' or ' or the end is expected at character 9.".into()),
        ("(name==a)and name==b", "Unable to parse filter: ' and ', ' or ' or the end is expected at character 10.".into()),
        ("name==a\0", "Unable to parse filter: it contains the character U+0000.".into()),
        (deep.as_str(), "Unable to parse filter: parentheses are nested more than 32 levels deep.".into()),
        (long.as_str(), "Unable to parse filter: it is longer than 8192 bytes.".into()),
    ] {
        assert_eq!(parse(filter).map_err(|error| error.to_string()), Err(message), "{filter}");
    }
    let deepest = format!("{}name==a{}", "(".repeat(32), ")".repeat(32));
    assert_eq!(parse(&deepest), Ok(name("a")));
}

proptest! {
    #[test]
    fn the_parser_does_not_panic_on_any_text(text in ".{0,60}") {
        drop(parse(&text));
    }

    #[test]
    fn the_parser_does_not_panic_on_text_that_resembles_a_filter(
        parts in prop::collection::vec(prop::sample::select(vec![
            "name", "id", "labels.a", "status", "percentageComplete", "==", "!=", "=in=", "=", ">", "<=", "(", ")", ",", ";", " and ",
            " or ", " ", "'", "\"", "\\", "*", "a", "5", "Active", "ü", "~", "=gt=",
        ]), 0..40)
    ) {
        drop(parse(&parts.concat()));
    }

    #[test]
    fn a_quoted_value_is_taken_literally(value in "[^*\0]{0,40}") {
        let escaped = value.replace('\\', "\\\\").replace('\'', "\\'");
        prop_assert_eq!(parse(&format!("name=='{escaped}'")), Ok(name(&value)));
    }
}
